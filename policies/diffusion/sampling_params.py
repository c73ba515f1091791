"""How rows are drawn and scored, and what a plan may change of it for one rollout."""

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
    """How rows are drawn; rows are scored as they were.

    Attributes:
        sampling: from the network's output to a Gaussian.
        call: arguments of the pipeline's call.
        changes: what of these is a plan's, by name.
    """

    sampling: StepSampler
    call: Mapping[str, Any]
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Tells drawings of one policy apart, in words."""
        return repr(sorted((name, repr(value)) for name, value in self.changes.items()))

    @property
    def changed_call(self) -> Mapping[str, Any]:
        """The plan's arguments alone."""
        return self.changes.get("call", {})

    def batch(self, most: int) -> int:
        """How many rows share a run, of at most so many: one, where a plan shows the pipeline something."""
        return 1 if call_has_media(self.changed_call) else most


def with_settings(
    drawing: SamplingParams, settings: Mapping[str, Any], form: CallForm, scheduler: Any
) -> SamplingParams:
    """The drawing with a plan's settings laid over it.

    Args:
        drawing: the policy's own.
        settings: of a plan: ``strength``, ``sampler``, and ``call``, whose arguments are laid over the policy's.
        form: what the pipeline's call takes.
        scheduler: which the sampler has to fit.

    Returns:
        The policy's own where there are none.

    Raises:
        ConfigError: a name or a value that is none, or an argument that the call does not take.
    """
    if not settings:
        return drawing
    known = DenoisingSettings.of_a_rollout
    if unknown := sorted(set(settings) - set(known)):
        raise ConfigError(f"Plan.settings of a denoising rollout are {', '.join(known)}; got {', '.join(unknown)}")
    sampler, strength = settings.get("sampler", drawing.sampling.sampler), settings.get("strength")
    if sampler not in (*SAMPLERS, NATIVE):
        raise ConfigError(f"Plan.settings: no sampler {sampler!r}; known are {', '.join((*SAMPLERS, NATIVE))}")
    if strength is not None and not (isinstance(strength, (int, float)) and strength >= 0):
        raise ConfigError(f"Plan.settings: strength must be a number of at least 0, got {strength!r}")
    strength = drawing.sampling.strength if strength is None else float(strength)
    sampling = replace(drawing.sampling, sampler=sampler, strength=strength)
    sampling.check_scheduler(scheduler)
    call = checked_call(settings.get("call", {}), form)
    return SamplingParams(sampling=sampling, call={**drawing.call, **call}, changes=dict(settings))


def with_tail(
    drawing: SamplingParams, tail: FastRemainder, *, last: int, num_steps: int, form: CallForm, scheduler: Any
) -> SamplingParams:
    """The drawing with the steps after decision ``last`` made fewer, and of second order.

    Args:
        drawing: with the whole schedule.
        tail: how.
        last: the last decision that is drawn at random.
        num_steps: of the whole schedule.
        form: what the pipeline's call takes.
        scheduler: which is to step so.

    Returns:
        The drawing whose call has the times at which its steps begin, ``sigmas``.

    Raises:
        ConfigError: the pipeline or its scheduler takes none, or the call has them already.
    """
    takes = form.takes("sigmas") and "sigmas" in inspect.signature(scheduler.set_timesteps).parameters
    if not takes or drawing.call.get("sigmas") is not None:
        why = "is given already" if takes else f"{type(scheduler).__name__} or this pipeline does not take"
        raise ConfigError(
            "policy.fast_remainder makes the steps after the window fewer by the argument sigmas of the pipeline's "
            f"call, which {why}; leave policy.fast_remainder out"
        )
    times = shortened(num_steps, last, tail.frac)
    call = {**drawing.call, "num_inference_steps": len(times), "sigmas": list(times)}
    return replace(drawing, sampling=replace(drawing.sampling, tail_order=tail.order), call=call)


def checked_call(call: Any, form: CallForm) -> Mapping[str, Any]:
    """A plan's arguments for the pipeline. Raises ConfigError for one that its call does not take."""
    if not isinstance(call, Mapping):
        raise ConfigError(f"Plan.settings: call must hold arguments of the pipeline by name, got {call!r}")
    if unknown := sorted(name for name in call if not form.takes(name)):
        raise ConfigError(f"Plan.settings: the pipeline's call takes no {' and no '.join(unknown)}")
    try:
        require_single_results("Plan.settings: call", call)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return call
