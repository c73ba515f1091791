"""From what the denoiser said to the Gaussian a decision is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ReplayError
from mmgrpo.maths.divergences import Moments
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.transitions import SAMPLERS, Prediction, Step, ddim, extrapolated, kernel_mean

from .pipeline_run import StepCall
from .scheduler_check import (
    first_step_gap,
    native_mean_and_std,
    network_output,
    prediction_of,
    stepped_elements,
    stock_result,
)
from .scheduler_families import advance, family_of, num_steps, schedule_index

NATIVE = "native"
FIRST_ORDER_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Decision:
    """The Gaussian of one step call.

    Attributes:
        moments: of the Gaussian.
        level: where in the schedule it stands.
        keep: the elements that it draws; None: all.
        predicted: what the network said, and of which step, where a step after it may ask.
        excess_noise: of the noise that it leaves, over what the next level holds.
    """

    moments: Moments
    level: float
    keep: Tensor | None = None
    predicted: tuple[Prediction, Step] | None = None
    excess_noise: float = 0.0

    def at(self, index: Tensor, num_rows: int) -> Decision:
        """The same for some of ``num_rows`` rows, in any order and number; one may have several entries (frames)."""
        entries = self.moments.mean.shape[0] // num_rows
        own = entries_of(index, entries)
        predicted = self.predicted
        if predicted is not None:
            predicted = Prediction(predicted[0].x0[own], predicted[0].noise[own]), predicted[1]
        keep = None if self.keep is None else self.keep[index]
        return replace(self, moments=at_rows(self.moments, index, num_rows), keep=keep, predicted=predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSampler:
    """How decisions are drawn and scored.

    Attributes:
        sampler: name in ``mmgrpo.maths.transitions.SAMPLERS``, or "native" for a scheduler that draws its own noise.
        strength: noise level (flow_sde, cps), or eta (ddim, dance_sde); unused by "native".
        density: name in ``mmgrpo.maths.gaussian.DENSITIES``.
        reduction: name in ``mmgrpo.maths.gaussian.REDUCTIONS``.
        tail_order: of the steps after the last one that is drawn at random.
        last_std: of the last step, which ends on the clean sample; 0: it draws nothing.
    """

    sampler: str
    strength: float
    density: str
    reduction: str
    tail_order: int = 1
    last_std: float = 0.0

    def decide(self, call: StepCall, *, stochastic: bool, before: Decision | None = None) -> Decision:
        """The Gaussian that ``call`` draws from; std 0 makes it a deterministic step.

        That is of first order, unless it is given what the step before it predicted: then of second. The last step of a
        schedule is stochastic only where ``last_std`` says so. Advances the scheduler by the step.
        """
        index = schedule_index(call.scheduler, call.timestep)
        is_last = index + 1 >= len(call.scheduler.timesteps)
        if self.sampler == NATIVE:
            return self._native(call, index, stochastic=stochastic and (not is_last or self.last_std > 0))
        family = family_of(call.scheduler)
        step = family.step(call.scheduler, index, call.timestep)
        is_drawn = stochastic and not is_last
        kernel = SAMPLERS[self.sampler](step, strength=self.strength) if is_drawn else ddim(step, strength=0.0)
        if stochastic and (is_last or step.next_level.sigma == 0):
            kernel = replace(kernel, std=self.last_std)
        prediction = prediction_of(family, call, step)
        predicted = (prediction, step) if self.tail_order > 1 else None
        if before is not None and before.predicted is not None:
            said, step_before = before.predicted
            prediction = extrapolated(call.sample.float(), prediction, said, step, step_before.level)
        mean = kernel_mean(kernel, prediction)
        keep = stepped_elements(call)
        if keep is not None:
            mean = torch.where(keep, mean, stock_result(call))
        advance(call.scheduler)
        moments = Moments(mean=mean, velocity=network_output(call), std=kernel.std, step=step.length)
        excess = kernel.excess_noise(step) if is_drawn else 0.0
        return Decision(moments=moments, level=step.level.sigma, keep=keep, predicted=predicted, excess_noise=excess)

    def skip(self, call: StepCall) -> None:
        """Advances the scheduler past a step whose outcome is known."""
        if self.sampler == NATIVE:
            self._native(call, 0, stochastic=False)  # such a scheduler moves on by its own step alone
            return
        schedule_index(call.scheduler, call.timestep)
        advance(call.scheduler)

    def logdensity(self, next_state: Tensor, moments: Moments) -> Tensor:
        """Elementwise log-density of a stored next state, float32."""
        return DENSITIES[self.density](next_state.float(), moments.mean, moments.std)

    def reduced(self, values: Sequence[tuple[Tensor, Tensor | None]], rows: int) -> Tensor:
        """One number per row from the elementwise values of a decision's step calls, (rows,).

        Each value comes with the elements to keep, or None for all of them.
        """
        total = torch.stack([_element_sums(value, keep, rows) for value, keep in values]).sum(0)
        count = torch.stack([_element_counts(value, keep, rows) for value, keep in values]).sum(0)
        return REDUCTIONS[self.reduction](total, count)

    def unit(self, num_elements: int) -> float:
        """The log-probability of a step each of whose elements has a log-density of 1."""
        count = torch.tensor([float(num_elements)])
        return float(REDUCTIONS[self.reduction](count, count))

    def check_scheduler(self, scheduler: Any) -> None:
        """Raises PolicyError for a scheduler whose family is not known."""
        if self.sampler != NATIVE:
            family_of(scheduler)

    def check_family(self, call: StepCall) -> None:
        """Raises ReplayError for a scheduler whose stock first step is not the one our formulas give."""
        if self.sampler == NATIVE:
            return
        finite = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (call.model_output, call.sample))
        model_output, sample = finite  # a row that is not finite is a failed sample, and says nothing of the scheduler
        gap = first_step_gap(family_of(call.scheduler), replace(call, model_output=model_output, sample=sample))
        if not gap < FIRST_ORDER_TOLERANCE:
            raise ReplayError(
                f"the stock first step of {type(call.scheduler).__name__} differs by {gap:.1e} from the one its "
                "configuration implies; take sampler 'native' if it draws noise of its own, else replace the "
                "scheduler by DDIM, Euler or FlowMatchEuler before wrapping"
            )

    def _native(self, call: StepCall, index: int, *, stochastic: bool) -> Decision:
        """The scheduler's own step; the last may draw nothing, and is then drawn with ``last_std``."""
        output = network_output(call)
        mean, std = native_mean_and_std(call.scheduler, call.stock, call.model_output.float(), call.sample.float())
        if not stochastic:
            return Decision(Moments(mean=mean, velocity=output, std=0.0, step=1.0), level=0.0)
        if not isinstance(std, Tensor) and std == 0.0:
            if index + 1 < num_steps(call.scheduler) and bool(torch.as_tensor(call.timestep).any()):
                raise ConfigError(
                    f"sampler 'native' takes the noise that the scheduler draws, and {type(call.scheduler).__name__} "
                    "draws none here; choose sampler 'ddim' or 'cps', or make the scheduler stochastic (eta in "
                    "policy.call)"
                )
            std = self.last_std
        return Decision(Moments(mean=mean, velocity=output, std=std, step=1.0), level=0.0)


def at_rows(moments: Moments, index: Tensor, num_rows: int) -> Moments:
    """The Gaussians of some of ``num_rows`` rows, in any order and number; one may have several entries (frames)."""
    index = entries_of(index, moments.mean.shape[0] // num_rows)
    std = moments.std[index] if isinstance(moments.std, Tensor) else moments.std
    return Moments(mean=moments.mean[index], velocity=moments.velocity[index], std=std, step=moments.step)


def entries_of(index: Tensor, entries: int) -> Tensor:
    """Where the entries of some rows stand, each of which has as many."""
    if entries == 1:
        return index
    return (index[:, None] * entries + torch.arange(entries, device=index.device)).flatten()


def _element_sums(value: Tensor, keep: Tensor | None, rows: int) -> Tensor:
    value = value if keep is None else torch.where(keep, value, torch.zeros_like(value))
    return value.reshape(rows, -1).sum(1)


def _element_counts(value: Tensor, keep: Tensor | None, rows: int) -> Tensor:
    if keep is None:
        return torch.full((rows,), value.numel() / rows, device=value.device)
    return keep.expand_as(value).reshape(rows, -1).sum(1).float()
