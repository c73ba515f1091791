"""Predictions of the network on clean samples at chosen noise levels, through the stock pipeline.

The pipeline runs for two iterations. The first is a ghost whose ``step`` returns noised data; the second is real, and
the model output at its ``step`` is the prediction to compare with the target. Each row has its own noise level: the
denoiser's timestep argument is an affine function of the schedule's timestep, measured from the two iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from mmgrpo.errors import PolicyError

from .denoising_rows import DenoisingRow
from .instrumented_pipeline import InstrumentedPipeline
from .noising import Noised, noised
from .pipeline_run import PipelineRun, StepCall, Stop
from .proxies import call_argument, leading_rows
from .sampler_steps import SamplerStep, noised_further, stored_states
from .scheduler_families import advance, schedule_index
from .settings import ReadingSettings

TIMESTEP_NAMES = ("timestep", "timesteps", "t")
ROUNDING = 1e-2  # relative; rounding of a state to half precision between two steps
Noising = Callable[[StepCall, Tensor, bool], Noised]
"""(step call, clean data, whether timesteps must be integers) -> noised data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSample:
    """A finished sample at one of its noise levels.

    Attributes:
        row: its row.
        data: (1, ...) the final state, float32.
        seed: of level and noise.
        level_index: index of the level among the sample's levels.
        step: of the sampler, if the decision is one of its states.
    """

    row: DenoisingRow
    data: Tensor
    seed: int
    level_index: int = 0
    step: SamplerStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedPrediction:
    """The network's prediction on noised data.

    Attributes:
        noised: the noised data and the target.
        data: (N, ...) the clean data.
        output: (N, ...) the prediction, float32, with grad.
        num_forwards: denoiser rows computed.
        num_rows: N, unless a row that ran alone has several entries.
    """

    noised: Noised
    data: Tensor
    output: Tensor
    num_forwards: float
    num_rows: int

    @property
    def error_N(self) -> Tensor:
        """Mean squared error of each row."""
        return (self.output - self.noised.target).square().reshape(self.num_rows, -1).mean(1).float()

    @property
    def sigma_N(self) -> Tensor:
        """Noise level of each row."""
        return self.noised.sigma_N.reshape(self.num_rows, -1)[:, 0].float()

    @property
    def error_mean(self) -> Tensor:
        """Mean of ``error_N``, computed in one sum."""
        return mse_loss(self.output, self.noised.target)


def two_step_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments for a run of two iterations; its output, if any, is decoded."""
    arguments = {key: value for key, value in call.items() if key not in ("timesteps", "sigmas", "output_type")}
    return {**arguments, "num_inference_steps": 2}


def predict_at_levels(
    instrumented: InstrumentedPipeline,
    clean_samples: Sequence[CleanSample],
    call: Mapping[str, Any],
    reading: ReadingSettings,
    *,
    grad: bool,
) -> NoisedPrediction:
    """The network's predictions on finished samples at their levels, all in one run.

    Args:
        instrumented: the pipeline.
        clean_samples: N samples at one level each, of one shape; a single one for pipelines with media in the call.
        call: arguments of the pipeline's call, from ``two_step_call``.
        reading: distribution of the noise levels.
        grad: whether the predictions have a graph.

    Returns:
        Predictions and targets.

    Raises:
        PolicyError: the pipeline's scheduler, states or denoiser do not fit; the message names them.
    """
    seeds, level_indices = [clean.seed for clean in clean_samples], [clean.level_index for clean in clean_samples]
    steps = [clean.step for clean in clean_samples if clean.step is not None]

    def noising(step: StepCall, data: Tensor, integer_timesteps: bool) -> Noised:
        if reading.states == "steps":
            return stored_states(step, steps)
        if reading.states != "sample":
            return noised_further(step, steps, seeds, reading, integer_timesteps=integer_timesteps)
        return noised(step, data, seeds, level_indices, reading, integer_timesteps=integer_timesteps)

    return predict_noised(instrumented, clean_samples, call, noising, grad=grad)


def predict_noised(
    instrumented: InstrumentedPipeline,
    clean_samples: Sequence[CleanSample],
    call: Mapping[str, Any],
    noising: Noising,
    *,
    grad: bool,
) -> NoisedPrediction:
    """As ``predict_at_levels``, with a custom noising function."""
    callbacks = _TwoStepCallbacks(clean_samples=clean_samples, noising=noising)
    run = PipelineRun(on_step=callbacks.on_step, ghost=lambda iteration: iteration == 0, rewrite=callbacks.rewrite)
    rows = [clean.row for clean in clean_samples]
    instrumented.run(run, instrumented.form.arguments(rows, call), seed=rows[0].seed, grad=grad)
    if callbacks.output is None or callbacks.noised is None:
        raise PolicyError("the pipeline ended before its second step, so a noised sample has no prediction")
    return NoisedPrediction(
        noised=callbacks.noised,
        data=callbacks.data,
        output=callbacks.output,
        num_forwards=run.num_forwards,
        num_rows=len(clean_samples),
    )


@dataclass(slots=True)
class _TwoStepCallbacks:
    """Callbacks of the two iterations."""

    clean_samples: Sequence[CleanSample]
    noising: Noising
    noised: Noised | None = None
    output: Tensor | None = None
    _schedule: Any = None
    _first_argument: Tensor | None = None
    _noised_state: Tensor | None = None
    _modules_called: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    @property
    def data(self) -> Tensor:
        """(N, ...) the clean data, on the device of the pipeline's states."""
        device = None if self._noised_state is None else self._noised_state.device
        return torch.cat([clean.data for clean in self.clean_samples]).to(device)

    def on_step(self, call: StepCall) -> Tensor:
        if call.stream > 0:
            raise PolicyError("the pipeline steps several states at once, which mmgrpo cannot noise at separate levels")
        if call.iteration == 0:
            return self._noise(call)
        assert self._noised_state is not None
        if self._modules_called[0] != self._modules_called[1]:
            raise PolicyError(
                "the pipeline selects its denoiser by noise level (several experts), so its rows cannot have separate "
                "levels"
            )
        _require_unchanged(call.sample, self._noised_state)
        self.output = call.model_output.float()
        raise Stop

    def _noise(self, call: StepCall) -> Tensor:
        self._schedule = call.scheduler
        schedule_index(call.scheduler, call.timestep)
        advance(call.scheduler)
        assert self._first_argument is not None
        self._noised_state = call.sample
        data = self.data
        if data.shape != call.sample.shape:
            raise PolicyError(
                f"the pipeline steps states of shape {tuple(call.sample.shape)}, the samples have {tuple(data.shape)}; "
                "renoising needs one state shape for all prompts: train without warm-up and without reading"
            )
        self.noised = self.noising(call, data, not self._first_argument.is_floating_point())
        self._noised_state = self.noised.state.to(call.sample.dtype)
        return self._noised_state.clone()

    def rewrite(self, iteration: int, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        argument = call_argument(module, args, kwargs, TIMESTEP_NAMES)
        if argument is None:
            raise PolicyError(f"{type(module).__name__} has no timestep argument named one of {TIMESTEP_NAMES}")
        self._modules_called[iteration].add(id(module))
        name, value = argument
        value = torch.as_tensor(value)
        if iteration == 0:
            self._first_argument = value
            return args, kwargs
        replaced = self._row_timesteps(value, leading_rows(args, kwargs))
        if name in kwargs:
            return args, {**kwargs, name: replaced}
        return tuple(replaced if item is argument[1] else item for item in args), kwargs

    def _row_timesteps(self, second: Tensor, num_rows: int) -> Tensor:
        """The argument of the second iteration with each row's level; guidance repeats the rows."""
        assert self.noised is not None
        assert self._first_argument is not None
        t0, t1 = self._schedule.timesteps[:2].double()
        first, rows = self._first_argument.double(), self.noised.timestep_N
        slope = (second.double() - first) / (t1 - t0).to(second.device)
        offset = rows.to(second.device).double() - t0.to(second.device)
        offset = offset.repeat(max((second.shape[0] if second.ndim else num_rows) // len(offset), 1))
        offset = offset.reshape(-1, *[1] * (second.ndim - 1))
        return (first + offset * slope).to(second.dtype)


def _require_unchanged(state: Tensor, noised: Tensor) -> None:
    """Raises PolicyError for a pipeline that changes its states between two steps, except for their precision."""
    scale = noised.abs().max().clamp(min=1e-12)
    if state.shape != noised.shape or not bool(((state - noised).abs() <= ROUNDING * scale).all()):
        raise PolicyError(
            "the pipeline overwrites parts of its states between two steps (for example from an image), so its rows "
            "cannot have separate noise levels"
        )
