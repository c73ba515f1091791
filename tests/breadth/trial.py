"""A trial of one pipeline class under the policy: its result, and the settings that it needed."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import diffusers
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.call_form import form_of
from mmgrpo.policies.diffusion.conditioning import contrasting_prompt
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from PIL import Image

from mmgrpo.errors import MmgrpoError
from mmgrpo.types import Prompt, Rollout
from tests.breadth import assembly
from tests.policies import contract

TEXTS = ("a red fox", "two blue squares on a table")
MEDIA_ATTRIBUTES = {"image": "images", "video": "videos"}  # arguments that a prompt shows
GROUP_SIZE = 1
SEED = 11
EXACT = 1e-5
EVERYWHERE = {"use_resolution_binning": False}  # arguments that keep a call as small as it asks to be
FAILED_CALL = " fails with "  # in the error of a pipeline whose call failed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one class.

    Attributes:
        verdict: one of ``denoising.VERDICTS``.
        options: settings that it needed besides the defaults, as a person would write them.
        reason: of a verdict other than exact.
        gap: largest change of a log-probability at replay, in the batch of the rollout and alone.
    """

    verdict: str
    options: tuple[str, ...] = ()
    reason: str = ""
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How the policy is made."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    first_order: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that an error names.

    Attributes:
        pattern: of the error message.
        take: (attempt, message) -> the attempt with it.
    """

    pattern: str
    take: Callable[[Attempt, str], Attempt]


def try_class(name: str) -> Outcome:
    """Builds the class, then rolls out and replays it, with the options that its errors name."""
    if name not in assembly.recipes():
        return Outcome("not built", reason=unbuilt_reason(name))
    if "unbuilt" in assembly.recipes()[name]:
        return Outcome("not built", reason=assembly.recipes()[name]["unbuilt"])
    attempt, messages = Attempt(), list[str]()
    while True:
        try:
            gap, alone = _gap(name, attempt)
        except MmgrpoError as error:
            messages.append(str(error))
            following = _following(attempt, str(error))
            if following is None:
                stock = _stock_error(name) if FAILED_CALL in str(error) else ""
                unsupported = Outcome("not supported", reason=messages[0])
                return Outcome("stock fails", reason=_why_stock_fails(name, stock)) if stock else unsupported
            attempt = following
            continue
        except NotImplementedError as error:
            if "on CPU" not in str(error):
                raise
            return Outcome("needs a GPU", attempt.options, f"{error}")
        except _UnbuiltError as error:
            return Outcome("not built", reason=f"its tiny parts do not fit yet: {error}")
        except Exception as error:
            return Outcome("crashed", attempt.options, f"{type(error).__name__}: {error}")
        finally:
            gc.collect()
        following = ALONE(attempt, "")
        if not gap <= EXACT and following.options != attempt.options:
            attempt = following  # a batch of another size rounds otherwise
            continue
        if not gap <= EXACT:
            return Outcome("inexact", attempt.options, f"a row alone or in its batch differs by {gap:.1e}", gap)
        return Outcome("exact", (*attempt.options, *(("each row alone, of itself",) if alone else ())), gap=gap)


def _why_stock_fails(name: str, error: str) -> str:
    """The error, after the known fault of the library."""
    upstream_fault = assembly.recipes()[name].get("upstream")
    return f"upstream, diffusers {diffusers.__version__}: {upstream_fault}; {error}" if upstream_fault else error


def unbuilt_reason(name: str) -> str:
    """Why there is no recipe for a class."""
    if assembly.pipeline_classes().get(name) is None:
        missing = [package for package in getattr(diffusers, name)._backends if find_spec(package) is None]
        return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    return "no recipe yet"


def _stock_error(name: str) -> str:
    """What the pipeline itself fails with when it is called for one prompt; empty where it works."""
    pipeline = assembly.build(name)
    prompts, call = prompts_and_call(name, pipeline)
    form = replace(form_of(type(pipeline).__call__, ()), single=True)
    row = DenoisingRow(prompt=prompts[0], seed=SEED, group=0, member=0)
    try:
        pipeline(**form.arguments([row], call))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _following(attempt: Attempt, message: str) -> Attempt | None:
    for option in OPTIONS:
        if re.search(option.pattern, message):
            following = option.take(attempt, message)
            if following.options != attempt.options:
                return following
    return None


def _setting(**settings: Any) -> Callable[[Attempt, str], Attempt]:
    def take(attempt: Attempt, message: str) -> Attempt:
        if all(attempt.settings.get(key) == value for key, value in settings.items()):
            return attempt
        text = tuple(f"{key}: {value}" for key, value in settings.items())
        return replace(attempt, settings={**attempt.settings, **settings}, options=(*attempt.options, *text))

    return take


def _all_linear(attempt: Attempt, message: str) -> Attempt:
    if attempt.settings.get("lora"):
        return attempt
    lora = {"rank": 2, "alpha": 2.0, "targets": "all-linear"}
    text = (*attempt.options, "lora.targets: all-linear")
    return replace(attempt, settings={**attempt.settings, "lora": lora}, options=text)


def _first_order(attempt: Attempt, message: str) -> Attempt:
    if attempt.first_order:
        return attempt
    return replace(attempt, first_order=True, options=(*attempt.options, "scheduler replaced by a first-order one"))


OPTIONS = (
    Option(r"policy.lora.targets: .* match no module", _all_linear),
    Option(r"Replace it before wrapping|differs by .* from the one its configuration", _first_order),
)


ALONE = _setting(rollout_batch=1, update_batch=1)


class _UnbuiltError(Exception):
    """A pipeline class that our parts do not make."""


def _gap(name: str, attempt: Attempt) -> tuple[float, bool]:
    try:
        pipeline = assembly.build(name)
    except Exception as error:
        raise _UnbuiltError(f"{type(error).__name__}: {error}") from error
    if attempt.first_order:
        pipeline.scheduler = _first_order_scheduler(pipeline.scheduler)
    prompts, call = prompts_and_call(name, pipeline)
    settings = {
        "call": call,
        "lora": {"rank": 2, "alpha": 2.0},
        "rollout_batch": 2,
        "update_batch": 2,
        **(assembly.recipes()[name].get("settings") or {}),
        **attempt.settings,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        policy = DenoisingPolicy(pipeline, settings)
        rollout = policy.rollout(prompts, group_size=GROUP_SIZE, seed=SEED)
        return _measured(policy, rollout), rollout.num_unbatched > 0


def _measured(policy: DenoisingPolicy, rollout: Rollout) -> float:
    """Largest change of a log-probability, all rows together and each alone; with gradients seen to flow."""
    if not rollout.mask_BT.any():
        raise AssertionError("no step was sampled")
    gaps = [contract.largest_difference(contract.values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT)]
    for row in range(len(rollout.samples)):
        mask_BT = torch.zeros_like(rollout.mask_BT)
        mask_BT[row] = rollout.mask_BT[row]
        values_BT = contract.values(policy, rollout, [row])
        gaps.append(contract.largest_difference(values_BT, rollout.old_logprob_BT, mask_BT))
    result = contract.gradients(policy, rollout, [0])
    if not all(torch.isfinite(gradient).all() for gradient in result) or not any(g.any() for g in result):
        raise AssertionError("gradients are zero or not finite")
    return max(gaps) if all(gap == gap for gap in gaps) else float("nan")


def _first_order_scheduler(scheduler: Any) -> Any:
    flow = "FlowMatch" in type(scheduler).__name__ or scheduler.config.get("prediction_type") == "flow_prediction"
    if flow:
        return diffusers.FlowMatchEulerDiscreteScheduler.from_config(scheduler.config)
    return diffusers.DDIMScheduler.from_config(scheduler.config, clip_sample=False)


def prompts_and_call(name: str, pipeline: Any) -> tuple[list[Prompt], dict[str, Any]]:
    """Two prompts, which show what the pipeline is shown, and the arguments that all share."""
    call = assembly.arguments(name)
    media: dict[str, Any] = {}
    parameters = inspect.signature(type(pipeline).__call__).parameters
    call = {**{key: value for key, value in EVERYWHERE.items() if key in parameters}, **call}
    for argument, attribute in MEDIA_ATTRIBUTES.items():
        value = call.get(argument)
        if isinstance(value, Image.Image):
            media[attribute] = (call.pop(argument),)
        elif isinstance(value, list) and value and isinstance(value[0], Image.Image):
            media[attribute] = (call.pop(argument),) if argument == "video" else tuple(call.pop(argument))  # pyrefly: ignore[bad-argument-type]
    first, *others = assembly.recipes()[name].get("texts") or TEXTS
    prompt = Prompt(first, **media)
    return [prompt, *(replace(contrasting_prompt(prompt, {}), text=text) for text in others)], call
