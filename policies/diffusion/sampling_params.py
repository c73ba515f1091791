"""Sampling parameters of rows, and their overrides by a plan."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.maths.transitions import SAMPLERS
from mmgrpo.maths.windows import shortened

from .call_form import CallForm
from .denoising_rows import call_has_media
from .settings import DenoisingSettings, FastRemainder, require_single_results
from .step_sampler import NATIVE, StepSampler


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingParams:
    """How rows are sampled, and scored.

    Attributes:
        step_sampler: from the network's output to a Gaussian.
        call: arguments of the pipeline's call.
        changes: the plan's overrides, by name.
    """

    step_sampler: StepSampler
    call: Mapping[str, Any]
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """A text that identifies the overrides."""
        return repr(sorted((name, repr(value)) for name, value in self.changes.items()))

    @property
    def changed_call(self) -> Mapping[str, Any]:
        """The plan's call arguments."""
        return self.changes.get("call", {})

    def batch(self, size: int) -> int:
        """The batch size, at most ``size``: 1 if the plan has media in the call."""
        return 1 if call_has_media(self.changed_call) else size


def with_settings(
    params: SamplingParams, settings: Mapping[str, Any], form: CallForm, scheduler: Any
) -> SamplingParams:
    """The parameters with a plan's settings merged on top.

    Args:
        params: of the policy.
        settings: of a plan: ``strength``, ``sampler``, and ``call``, whose arguments override the policy's.
        form: arguments of the pipeline's call.
        scheduler: of the decisions, which the sampler must support.

    Returns:
        ``params`` itself without settings.

    Raises:
        ConfigError: an unknown name, an invalid value, or an argument that the call does not take.
    """
    if not settings:
        return params
    names = DenoisingSettings.of_a_rollout
    if unknown := sorted(set(settings) - set(names)):
        raise ConfigError(f"Plan.settings of a denoising rollout are {', '.join(names)}; got {', '.join(unknown)}")
    sampler, strength = settings.get("sampler", params.step_sampler.sampler), settings.get("strength")
    if sampler not in (*SAMPLERS, NATIVE):
        raise ConfigError(f"Plan.settings: unknown sampler {sampler!r}; use one of {', '.join((*SAMPLERS, NATIVE))}")
    if strength is not None and not (isinstance(strength, (int, float)) and strength >= 0):
        raise ConfigError(f"Plan.settings: strength must be a number of at least 0, got {strength!r}")
    strength = params.step_sampler.strength if strength is None else float(strength)
    step_sampler = replace(params.step_sampler, sampler=sampler, strength=strength)
    step_sampler.check_scheduler(scheduler)
    call = checked_call(settings.get("call", {}), form)
    return SamplingParams(step_sampler=step_sampler, call={**params.call, **call}, changes=dict(settings))


def with_tail(
    params: SamplingParams, tail: FastRemainder, *, last: int, num_steps: int, form: CallForm, scheduler: Any
) -> SamplingParams:
    """The parameters with fewer steps, of second order, after decision ``last``.

    Args:
        params: with the complete schedule.
        tail: the number and order of these steps.
        last: the last stochastic decision.
        num_steps: of the complete schedule.
        form: arguments of the pipeline's call.
        scheduler: takes the schedule.

    Returns:
        The parameters whose call has ``sigmas``, the times at which its steps begin.

    Raises:
        ConfigError: the pipeline or its scheduler has no ``sigmas``, or the call sets them already.
    """
    is_supported = form.takes("sigmas") and "sigmas" in inspect.signature(scheduler.set_timesteps).parameters
    if not is_supported or params.call.get("sigmas") is not None:
        reason = "is already set" if is_supported else f"{type(scheduler).__name__} or this pipeline does not support"
        raise ConfigError(
            "policy.fast_remainder shortens the schedule after the window by the argument sigmas of the pipeline's "
            f"call, which {reason}; remove policy.fast_remainder"
        )
    times = shortened(num_steps, last, tail.frac)
    call = {**params.call, "num_inference_steps": len(times), "sigmas": list(times)}
    return replace(params, step_sampler=replace(params.step_sampler, tail_order=tail.order), call=call)


def checked_call(call: Any, form: CallForm) -> Mapping[str, Any]:
    """A plan's arguments for the pipeline. Raises ConfigError for one that its call does not take."""
    if not isinstance(call, Mapping):
        raise ConfigError(f"Plan.settings: call must map argument names to values, got {call!r}")
    if unknown := sorted(name for name in call if not form.takes(name)):
        raise ConfigError(f"Plan.settings: the pipeline's call has no argument {', '.join(unknown)}")
    try:
        require_single_results("Plan.settings: call", call)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return call
