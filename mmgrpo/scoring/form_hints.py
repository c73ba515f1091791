"""Why a custom reward failed when it was called: the forms of a reward, and what the form of this one passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, signature
from typing import Any

from mmgrpo.scoring.image_batch_form import ImageBatchReward
from mmgrpo.scoring.trl_form import TrlReward
from mmgrpo.system.site_pages import page_url
from mmgrpo.types import Sample

OF_OTHER_FORMS = frozenset(("image", "images", "prompt", "prompts", "text", "texts", "video", "videos", "metadata"))
"""Names of a first parameter that expects no samples."""
PAGE = page_url("how-to/own-reward")


def form_hint(function: Callable[..., Any], name: str, samples: Sequence[Sample]) -> str:
    """The cause of a failed call, if it may be the form of the function.

    Args:
        function: the reward, adapted to samples.
        name: its name, as its definition has it.
        samples: those of the call.

    Returns:
        A sentence or more; empty for shipped rewards, functions in TRL's form, and functions of ``samples``.
    """
    if isinstance(function, ImageBatchReward):
        kind = "a float32 tensor (N, 3, H, W) with values in [0, 1]"
        if any(sample.video is not None for sample in samples):
            kind = "a float32 tensor (N, F, 3, H, W) of videos of F frames, with values in [0, 1]"
        return (
            f"{name}(images, prompts, metadata) is called in flow_grpo's form, where images is {kind}, prompts a list "
            "of texts and metadata a list of dicts. PIL images are those of a function of "
            f"samples, def {name}(samples): images = [s.image for s in samples] ({PAGE})."
        )
    if isinstance(function, TrlReward) or _is_shipped(function):
        return ""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return _forms(name, "(...)")
    positional = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    listed = f"({', '.join(positional)})"
    if not positional and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return (
            f"{_forms(name, listed)} If {name}() returns the scoring function, assign its result in your module, "
            f"score = {name}(), and name that: python:MODULE:score."
        )
    try:
        signature(function).bind(samples)
    except TypeError:
        return _forms(name, listed)
    return _forms(name, listed) if positional and positional[0] in OF_OTHER_FORMS else ""


def _forms(name: str, listed: str) -> str:
    return (
        f"A reward is {name}(samples), with Sample objects that have prompt and image (PIL), video, audio, array or "
        f"text; {name}(completions, **kwargs), TRL's form, with lists by keyword; or "
        f"{name}(images, prompts, metadata), flow_grpo's form, with images as a tensor. {name}{listed} has the names "
        f"of neither of the last two, so it was called with samples. Write for example def {name}(samples): return "
        f"[my_score(s.image, s.prompt.text) for s in samples] ({PAGE})."
    )


def _is_shipped(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] == "mmgrpo"
