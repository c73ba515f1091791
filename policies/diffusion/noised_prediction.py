"""What the network says of clean data at noise levels of their own, through the stock pipeline.

The pipeline is run for two iterations. The first is a ghost whose ``step`` returns noised data; the second is real,
and what reaches its ``step`` is the prediction to compare with the target. Each row gets a noise level of its own: the
denoiser's timestep argument is an affine function of the schedule's timestep, read off the two iterations.
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
from .scheduler_families import advance, schedule_index
from .settings import ReadingSettings

TIMESTEP_NAMES = ("timestep", "timesteps", "t")
ROUNDING = 1e-2  # relative; what half precision makes of a state between two steps
Noising = Callable[[StepCall, Tensor, bool], Noised]
"""Of the step to answer, the clean data and whether timesteps must be integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSample:
    """One finished sample at one of its levels.

    Attributes:
        row: whom for.
        data: (1, ...) the final state, float32.
        seed: of level and noise.
        place: which of the sample's levels it is.
    """

    row: DenoisingRow
    data: Tensor
    seed: int
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedPrediction:
    """What the network said of noised data.

    Attributes:
        noised: the data and the target.
        data: (N, ...) the data themselves.
        output: (N, ...) what the network said, float32, with grad.
        num_forwards: denoiser rows computed.
        num_rows: N, unless a row that ran alone has several entries.
    """

    noised: Noised
    data: Tensor
    output: Tensor
    num_forwards: int
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
        """Mean of ``error_N`` in one sum."""
        return mse_loss(self.output, self.noised.target)


def two_step_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call for a run of two iterations that ends, if it ends, in pictures."""
    kept = {key: value for key, value in call.items() if key not in ("timesteps", "sigmas", "output_type")}
    return {**kept, "num_inference_steps": 2}


def predict_at_levels(
    stage: InstrumentedPipeline,
    cleans: Sequence[CleanSample],
    call: Mapping[str, Any],
    reading: ReadingSettings,
    *,
    grad: bool,
) -> NoisedPrediction:
    """The network's predictions on finished samples at their levels, all in one run.

    Args:
        stage: the pipeline.
        cleans: N samples at a level each, of one shape; of a pipeline that is shown something with a row, one.
        call: arguments of the pipeline's call, as ``two_steps`` has them.
        reading: how levels are drawn.
        grad: whether the predictions carry a graph.

    Returns:
        Predictions and targets.

    Raises:
        PolicyError: the pipeline's scheduler, states or denoiser do not fit; the message says which.
    """
    seeds, places = [clean.seed for clean in cleans], [clean.place for clean in cleans]

    def noising(step: StepCall, data: Tensor, whole: bool) -> Noised:
        return noised(step, data, seeds, places, reading, whole=whole)

    return predict_noised(stage, cleans, call, noising, grad=grad)


def predict_noised(
    stage: InstrumentedPipeline, cleans: Sequence[CleanSample], call: Mapping[str, Any], noising: Noising, *, grad: bool
) -> NoisedPrediction:
    """As ``matched``, noised in another way."""
    matcher = _Matcher(cleans=cleans, noising=noising)
    session = PipelineRun(on_step=matcher.on_step, ghost=lambda iteration: iteration == 0, rewrite=matcher.rewrite)
    rows = [clean.row for clean in cleans]
    stage.run(session, stage.form.arguments(rows, call), seed=rows[0].seed, grad=grad)
    if matcher.output is None or matcher.noised is None:
        raise PolicyError("the pipeline ended before its second step, so there is no prediction of a noised sample")
    return NoisedPrediction(
        noised=matcher.noised,
        data=matcher.data,
        output=matcher.output,
        num_forwards=session.num_forwards,
        num_rows=len(cleans),
    )


@dataclass(slots=True)
class _Matcher:
    """Answers the two iterations."""

    cleans: Sequence[CleanSample]
    noising: Noising
    noised: Noised | None = None
    output: Tensor | None = None
    _schedule: Any = None
    _first_argument: Tensor | None = None
    _given: Tensor | None = None
    _called: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    @property
    def data(self) -> Tensor:
        """(N, ...) the clean data, where the pipeline's states are."""
        device = None if self._given is None else self._given.device
        return torch.cat([clean.data for clean in self.cleans]).to(device)

    def on_step(self, call: StepCall) -> Tensor:
        if call.stream > 0:
            raise PolicyError("the pipeline steps several states at once, which are not noised at levels of their own")
        if call.iteration == 0:
            return self._noise(call)
        assert self._given is not None
        if self._called[0] != self._called[1]:
            raise PolicyError(
                "the pipeline has an expert for some noise levels and another for others, by its own schedule, so "
                "that samples are not noised at levels of their own"
            )
        _require_kept(call.sample, self._given)
        self.output = call.model_output.float()
        raise Stop

    def _noise(self, call: StepCall) -> Tensor:
        self._schedule = call.scheduler
        schedule_index(call.scheduler, call.timestep)
        advance(call.scheduler)
        assert self._first_argument is not None
        self._given = call.sample
        data = self.data
        if data.shape != call.sample.shape:
            raise PolicyError(
                f"the pipeline steps states of shape {tuple(call.sample.shape)}, the samples have {tuple(data.shape)}: "
                "they need states of one shape, whatever the prompts; train without warm-up and without reading"
            )
        self.noised = self.noising(call, data, not self._first_argument.is_floating_point())
        self._given = self.noised.state.to(call.sample.dtype)
        return self._given.clone()

    def rewrite(self, iteration: int, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        found = call_argument(module, args, kwargs, TIMESTEP_NAMES)
        if found is None:
            raise PolicyError(f"{type(module).__name__} takes no timestep by the names {TIMESTEP_NAMES}")
        self._called[iteration].add(id(module))
        name, value = found
        value = torch.as_tensor(value)
        if iteration == 0:
            self._first_argument = value
            return args, kwargs
        replaced = self._own_levels(value, leading_rows(args, kwargs))
        if name in kwargs:
            return args, {**kwargs, name: replaced}
        return tuple(replaced if item is found[1] else item for item in args), kwargs

    def _own_levels(self, second: Tensor, num_rows: int) -> Tensor:
        """The argument of the second iteration with each row's own level; guidance repeats the rows."""
        assert self.noised is not None
        assert self._first_argument is not None
        t0, t1 = self._schedule.timesteps[:2].double()
        first, rows = self._first_argument.double(), self.noised.timestep_N
        slope = (second.double() - first) / (t1 - t0).to(second.device)
        own = rows.to(second.device).double() - t0.to(second.device)
        own = own.repeat(max((second.shape[0] if second.ndim else num_rows) // len(own), 1))
        own = own.reshape(-1, *[1] * (second.ndim - 1))
        return (first + own * slope).to(second.dtype)


def _require_kept(found: Tensor, given: Tensor) -> None:
    """Raises PolicyError for a pipeline that changes its states between two steps, but for their precision."""
    scale = given.abs().max().clamp(min=1e-12)
    if found.shape != given.shape or not bool(((found - given).abs() <= ROUNDING * scale).all()):
        raise PolicyError(
            "the pipeline changes its states between two steps (it lays something given over them), so that samples "
            "are not noised at levels of their own"
        )
