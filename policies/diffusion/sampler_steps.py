"""The steps of samples generated without noise: recorded in the rollout, and noised further to be trained on.

x_s = (1 - s) x0 + s eps; a state at level s that is noised further to level t > s is x_t = a x_s + b eps, with
a = (1 - t) / (1 - s) and b^2 = t^2 - (s a)^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.self_correction import shifted
from mmgrpo.types import Sample, SamplerSteps

from .noising import Noised, flow_noised, level_and_noise, per_row
from .pipeline_run import StepCall
from .scheduler_families import FLOW, family_of, schedule_index
from .settings import ReadingSettings

SETTING = "policy.reading.states"
FLOW_ONLY = f"{SETTING}: the steps of a sampler are trained on with a flow-matching scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStep:
    """One step of one sample.

    Attributes:
        state: (1, ...) the state before it.
        clean: (1, ...) float32, the clean sample that the network predicted in it.
        next_state: (1, ...) the state after it.
        level: noise level before it.
        next_level: noise level after it.
    """

    state: Tensor
    clean: Tensor
    next_state: Tensor
    level: float
    next_level: float


@dataclass(slots=True)
class StepRecorder:
    """Records the steps of a run of the stock sampler, rows first."""

    states: list[Tensor] = field(default_factory=list)
    clean: list[Tensor] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    end_level: float = 0.0

    @torch.no_grad()
    def __call__(self, scheduler: Any, arguments: Mapping[str, Any]) -> None:
        """Records a step before the scheduler takes it. Raises PolicyError for schedulers of another kind."""
        family, sample = family_of(scheduler), arguments["sample"]
        if family is not FLOW or family.predict is None:
            raise PolicyError(f"{FLOW_ONLY}, and {type(scheduler).__name__} is {family.name}: use states: sample")
        index = schedule_index(scheduler, arguments["timestep"])
        step = family.step(scheduler, index, arguments["timestep"])
        if self.levels and not step.level.sigma < self.levels[-1]:
            raise PolicyError(f"{FLOW_ONLY} whose every step lowers the noise level: use states: sample")
        self.states.append(sample.cpu())
        self.clean.append(family.predict(scheduler, arguments["model_output"].float(), sample.float(), step.level).x0)
        self.levels.append(step.level.sigma)
        self.end_level = step.next_level.sigma

    def by_row(self, num_rows: int) -> list[SamplerSteps]:
        """The steps of each row; a single row has every entry of its states."""
        rows = [slice(row, row + 1) if num_rows > 1 else slice(None) for row in range(num_rows)]
        return [
            SamplerSteps(
                state_T=torch.stack([state[row] for state in self.states]),
                clean_T=torch.stack([clean[row].cpu() for clean in self.clean]),
                level_T=tuple(self.levels),
                end_level=self.end_level,
            )
            for row in rows
        ]


def steps_of(sample: Sample, latent: Tensor) -> tuple[SamplerStep, ...]:
    """The steps of a sample that ends on its latent. Raises DataError for a sample without a recorded."""
    recorded = sample.sampler_steps
    if recorded is None:
        raise DataError(
            f"{SETTING}: the sample of prompt {sample.group}, member {sample.member}, has no recorded steps: only "
            "samples of a step are trained on so; use states: sample for images of the data"
        )
    states = [state.nan_to_num(0.0, 0.0, 0.0) for state in (*recorded.state_T, latent)]  # of samples that failed
    levels = [*recorded.level_T, recorded.end_level]
    return tuple(
        SamplerStep(
            state=states[t].float(),
            clean=clean,
            next_state=states[t + 1].float(),
            level=levels[t],
            next_level=levels[t + 1],
        )
        for t, clean in enumerate(recorded.clean_T.nan_to_num(0.0, 0.0, 0.0))
    )


def further_levels(uniform_N: Tensor, next_level_N: Tensor, reading: ReadingSettings) -> Tensor:
    """Levels above those of states: uniform between low and high before the shift, at least ``margin`` above.

    t = shift(l + (high - l) u), l = max(low, shift^-1(s)) + margin.

    Shapes: (N,), (N,) -> (N,).   Raises: ConfigError if a state is at or above ``high`` already.
    """
    low_N = shifted(next_level_N, 1 / reading.shift).clamp(min=reading.low) + reading.margin
    if bool((low_N >= reading.high).any()):
        raise ConfigError(
            f"policy.reading: no level is between {float(low_N.max()):g} and high={reading.high:g}, as a state after a "
            "step of the sampler has that much noise: lower margin or low, or raise high"
        )
    return shifted(low_N + (reading.high - low_N) * uniform_N, reading.shift)


def noised_further(
    call: StepCall,
    steps: Sequence[SamplerStep],
    seeds: Sequence[int],
    reading: ReadingSettings,
    *,
    integer_timesteps: bool,
) -> Noised:
    """The states after steps, noised further to one level per row, with the velocity that leads back.

    From the state alone that is v = eps (t + s^2 a / (1 - s)) / b - x_s / (1 - s), the velocity of the score -eps / b
    at x_t; ``states: predictions`` takes (x_t - x0) / t with the clean sample x0 that the step predicted.

    Source: TDM-R1, arXiv:2603.07700, and its code (Luo-Yihong/TDM-R1, ``train_tdmr1_pub.py``).
    """
    entries, num_train = len(steps[0].next_state), call.scheduler.config.num_train_timesteps
    state = torch.cat([step.next_state for step in steps]).to(call.sample.device)
    uniform_N, noise = level_and_noise(state, seeds)
    next_level_N = torch.tensor([step.next_level for step in steps])
    timestep_N = further_levels(uniform_N, next_level_N, reading) * num_train
    timestep_N = (timestep_N.ceil() if integer_timesteps else timestep_N).repeat_interleave(entries)
    level, start = per_row(timestep_N / num_train, state), per_row(next_level_N.repeat_interleave(entries), state)
    share = (1 - level) / (1 - start)
    spread = (level**2 - (start * share) ** 2).sqrt()
    noisy = share * state + spread * noise
    target = noise * (level + start**2 * share / (1 - start)) / spread - state / (1 - start)
    if reading.states == "predictions":
        target = (noisy - torch.cat([step.clean for step in steps]).to(noisy)) / level
    return flow_noised(noisy, target, timestep_N, level)


def stored_states(call: StepCall, steps: Sequence[SamplerStep]) -> Noised:
    """The states before steps as the sampler had them, with the velocity that the network predicted there."""
    entries, num_train = len(steps[0].state), call.scheduler.config.num_train_timesteps
    state = torch.cat([step.state for step in steps]).to(call.sample.device)
    level_N = torch.tensor([step.level for step in steps]).repeat_interleave(entries)
    level = per_row(level_N, state)
    target = (state - torch.cat([step.clean for step in steps]).to(state)) / level
    return flow_noised(state, target, level_N * num_train, level)
