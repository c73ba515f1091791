"""The Gaussian of a decision, from the denoiser's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ReplayError
from mmgrpo.maths.divergences import Moments
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.transitions import SAMPLERS, DenoisingStep, Prediction, ddim, extrapolated, kernel_mean

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
        moments: its mean, velocity, standard deviation and step length.
        level: noise level of the step.
        keep: mask of the sampled elements; None: all.
        predicted: the network's prediction and its step, if the next step uses them.
        excess_noise: excess of its noise over the next noise level.
    """

    moments: Moments
    level: float
    keep: Tensor | None = None
    predicted: tuple[Prediction, DenoisingStep] | None = None
    excess_noise: float = 0.0

    def at(self, index: Tensor, num_rows: int) -> Decision:
        """The decision of some of ``num_rows`` rows, in any order and number; a row may have several entries."""
        entries = self.moments.mean.shape[0] // num_rows
        entry_index = entries_of(index, entries)
        predicted = self.predicted
        if predicted is not None:
            predicted = Prediction(predicted[0].x0[entry_index], predicted[0].noise[entry_index]), predicted[1]
        keep = None if self.keep is None else self.keep[index]
        return replace(self, moments=at_rows(self.moments, index, num_rows), keep=keep, predicted=predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSampler:
    """The transition distribution of steps.

    Attributes:
        sampler: name in ``mmgrpo.maths.transitions.SAMPLERS``, or "native" for a scheduler that samples its own noise.
        strength: noise level (flow_sde, cps), or eta (ddim, dance_sde); unused by "native".
        density: name in ``mmgrpo.maths.gaussian.DENSITIES``.
        reduction: name in ``mmgrpo.maths.gaussian.REDUCTIONS``.
        tail_order: order of the steps after the last stochastic one.
        last_std: of the last step, which ends on the clean sample; 0: deterministic.
    """

    sampler: str
    strength: float
    density: str
    reduction: str
    tail_order: int = 1
    last_std: float = 0.0

    def decide(self, call: StepCall, *, stochastic: bool, previous: Decision | None = None) -> Decision:
        """The Gaussian of the step ``call``; std 0 makes it deterministic.

        A deterministic step is of first order; with the prediction of the step before it, of second. The last step of a
        schedule is stochastic only with ``last_std``. Advances the scheduler by the step.
        """
        index = schedule_index(call.scheduler, call.timestep)
        is_last = index + 1 >= len(call.scheduler.timesteps)
        if self.sampler == NATIVE:
            return self._native(call, index, stochastic=stochastic and (not is_last or self.last_std > 0))
        family = family_of(call.scheduler)
        step = family.step(call.scheduler, index, call.timestep)
        is_sampled = stochastic and not is_last
        kernel = SAMPLERS[self.sampler](step, strength=self.strength) if is_sampled else ddim(step, strength=0.0)
        if stochastic and (is_last or step.next_level.sigma == 0):
            kernel = replace(kernel, std=self.last_std)
        prediction = prediction_of(family, call, step)
        predicted = (prediction, step) if self.tail_order > 1 else None
        if previous is not None and previous.predicted is not None:
            earlier, earlier_step = previous.predicted
            prediction = extrapolated(call.sample.float(), prediction, earlier, step, earlier_step.level)
        mean = kernel_mean(kernel, prediction)
        keep = stepped_elements(call)
        if keep is not None:
            mean = torch.where(keep, mean, stock_result(call))
        advance(call.scheduler)
        moments = Moments(mean=mean, velocity=network_output(call), std=kernel.std, step=step.length)
        excess = kernel.excess_noise(step) if is_sampled else 0.0
        return Decision(moments=moments, level=step.level.sigma, keep=keep, predicted=predicted, excess_noise=excess)

    def skip(self, call: StepCall) -> None:
        """Advances the scheduler past a step whose result is recorded."""
        if self.sampler == NATIVE:
            self._native(call, 0, stochastic=False)  # only its own step advances such a scheduler
            return
        schedule_index(call.scheduler, call.timestep)
        advance(call.scheduler)

    def logdensity(self, next_state: Tensor, moments: Moments) -> Tensor:
        """Elementwise log-density of a recorded next state, float32."""
        return DENSITIES[self.density](next_state.float(), moments.mean, moments.std)

    def reduced(self, values: Sequence[tuple[Tensor, Tensor | None]], rows: int) -> Tensor:
        """One number per row from the elementwise values of a decision's step calls, (rows,).

        Each value comes with the mask of its elements, or None for all.
        """
        total = torch.stack([_element_sums(value, keep, rows) for value, keep in values]).sum(0)
        count = torch.stack([_element_counts(value, keep, rows) for value, keep in values]).sum(0)
        return REDUCTIONS[self.reduction](total, count)

    def unit(self, num_elements: int) -> float:
        """The log-probability of a step whose elements each have a log-density of 1."""
        count = torch.tensor([float(num_elements)])
        return float(REDUCTIONS[self.reduction](count, count))

    def check_scheduler(self, scheduler: Any) -> None:
        """Raises PolicyError for a scheduler of an unknown family."""
        if self.sampler != NATIVE:
            family_of(scheduler)

    def check_family(self, call: StepCall) -> None:
        """Raises ReplayError if the stock first step differs from the one of our formulas."""
        if self.sampler == NATIVE:
            return
        finite = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (call.model_output, call.sample))
        model_output, sample = finite  # non-finite rows are failed samples, not scheduler errors
        gap = first_step_gap(family_of(call.scheduler), replace(call, model_output=model_output, sample=sample))
        if not gap < FIRST_ORDER_TOLERANCE:
            raise ReplayError(
                f"the stock first step of {type(call.scheduler).__name__} differs by {gap:.1e} from the one its "
                "configuration implies; use sampler 'native' if it samples its own noise, else replace the scheduler "
                "by DDIM, Euler or FlowMatchEuler before creating the policy"
            )

    def _native(self, call: StepCall, index: int, *, stochastic: bool) -> Decision:
        """The scheduler's own step; if the last step is deterministic, it gets ``last_std``."""
        output = network_output(call)
        mean, std = native_mean_and_std(call.scheduler, call.stock, call.model_output.float(), call.sample.float())
        if not stochastic:
            return Decision(Moments(mean=mean, velocity=output, std=0.0, step=1.0), level=0.0)
        if not isinstance(std, Tensor) and std == 0.0:
            if index + 1 < num_steps(call.scheduler) and bool(torch.as_tensor(call.timestep).any()):
                raise ConfigError(
                    f"sampler 'native' needs a scheduler that samples noise, and {type(call.scheduler).__name__} is "
                    "deterministic here; use sampler 'ddim' or 'cps', or make the scheduler stochastic (eta in "
                    "policy.call)"
                )
            std = self.last_std
        return Decision(Moments(mean=mean, velocity=output, std=std, step=1.0), level=0.0)


def at_rows(moments: Moments, index: Tensor, num_rows: int) -> Moments:
    """The Gaussians of some of ``num_rows`` rows, in any order and number; a row may have several entries (frames)."""
    index = entries_of(index, moments.mean.shape[0] // num_rows)
    std = moments.std[index] if isinstance(moments.std, Tensor) else moments.std
    return Moments(mean=moments.mean[index], velocity=moments.velocity[index], std=std, step=moments.step)


def entries_of(index: Tensor, entries: int) -> Tensor:
    """Indices of the entries of some rows, each with ``entries`` of them."""
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
