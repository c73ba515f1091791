"""Failed samples of a pipeline: non-finite values, and images that a safety checker replaced."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

FLAGS = ("nsfw_content_detected", "nsfw_detected", "watermark_detected")
"""Output fields that flag rows whose images the pipeline replaced by black ones."""

STATES = "its latents are not finite"
DECODED = "the decoder returned non-finite values"
REPLACED = "the safety checker replaced it by a black image"
FIXES = {
    STATES: "load the pipeline in float32 or bfloat16 (policy.dtype), or lower guidance, strength or learning rate",
    DECODED: "decode in float32: policy.components: {vae: float32}, or pipeline.vae.to(torch.float32) of a live one",
    REPLACED: "load the pipeline without it: policy.components: {safety_checker: null}, or pipeline.safety_checker = "
    "None of a live one",
}
"""Suggested fix per reason."""


def failures_of(
    output: Any, num_rows: int, *, finite_states: Sequence[bool] | None, decoded: Sequence[Tensor]
) -> list[str | None]:
    """The failure reason of each row, None for a valid result.

    Args:
        output: the result of the pipeline's call.
        num_rows: rows in the call.
        finite_states: per row, whether its final state is finite; None if unchecked.
        decoded: per decoder call, which entries of its output are finite.

    Returns:
        A reason or None per row.
    """
    states = finite_states or [True] * num_rows
    flags = _flagged(output, num_rows)
    rows = zip(states, finite_rows(decoded, num_rows), flags, strict=True)
    return [
        STATES if not is_state else DECODED if not is_decoded else REPLACED if is_flagged else None
        for is_state, is_decoded, is_flagged in rows
    ]


def finite_rows(decoded: Sequence[Tensor], num_rows: int) -> list[bool]:
    """Which rows have finite decoder outputs; if the calls do not divide by rows, all or none."""
    if not decoded:
        return [True] * num_rows
    if all(len(entries) % num_rows == 0 for entries in decoded):
        return torch.stack([entries.reshape(num_rows, -1).all(1) for entries in decoded]).all(0).tolist()
    entries = torch.cat(list(decoded))
    if len(entries) % num_rows == 0:  # row after row
        return entries.reshape(num_rows, -1).all(1).tolist()
    return [bool(entries.all())] * num_rows


def finite_states(states: Sequence[Tensor], num_rows: int) -> list[bool] | None:
    """Which rows are finite in all of their final states; None without a state of these rows."""
    of_rows = [state for state in states if len(state) % num_rows == 0]
    if not of_rows:
        return None
    return torch.stack([state.isfinite().reshape(num_rows, -1).all(1) for state in of_rows]).all(0).tolist()


def warn_of(failures: Sequence[str | None], pipeline: str, warned: set[str]) -> None:
    """Logs each new failure reason once, with its suggested fix."""
    for reason in dict.fromkeys(failure for failure in failures if failure is not None):
        if reason not in warned:
            warned.add(reason)
            logger.warning(
                "%d of %d samples of %s have no reward and are not trained on: %s. To fix this, %s. "
                "rollout/failed_samples counts them",
                failures.count(reason),
                len(failures),
                pipeline,
                reason,
                FIXES[reason],
            )


def _flagged(output: Any, num_rows: int) -> list[bool]:
    fields = dict(output) if isinstance(output, Mapping) else dict(getattr(output, "__dict__", {}))
    lists = [fields.get(name) for name in FLAGS]
    if isinstance(output, tuple):
        lists = [part for part in output if isinstance(part, list) and all(isinstance(flag, bool) for flag in part)]
    flagged = [False] * num_rows
    for flags in lists:
        if isinstance(flags, (list, tuple)) and len(flags) == num_rows:
            flagged = [is_flagged or bool(flag) for is_flagged, flag in zip(flagged, flags, strict=True)]
    return flagged
