"""Where in a step memory ran out, and which settings take less of it."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mmgrpo.errors import MmgrpoError, OutOfMemoryError
from mmgrpo.system.out_of_memory import is_out_of_memory

_ROLLOUT = "lower policy.rollout_batch, or set runtime.gather_for_rollout: false where the model is sharded"
_UPDATE = (
    "lower policy.update_batch (images and videos) or policy.update_tokens (texts), or set "
    "policy.gradient_checkpointing: true"
)
REMEDIES = {
    "the warm-up": _UPDATE,
    "the rollout": _ROLLOUT,
    "judging": "lower policy.rollout_batch, or run the rewards on another machine (mmgrpo serve-rewards)",
    "the update": _UPDATE,
    "the evaluation": f"{_ROLLOUT}, or run the rewards on another machine (mmgrpo serve-rewards)",
}
"""Suggestions to save memory, by the phase of a step."""


@contextmanager
def naming_phase(phase: str, step: int) -> Iterator[None]:
    """If memory runs out within it, its tensors are freed, so that the last complete step can still be saved.

    Args:
        phase: one of ``REMEDIES``.
        step: that was being taken.

    Raises:
        OutOfMemoryError: memory ran out; the message names the phase and the setting to lower.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MmgrpoError) or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold the activations
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        raise OutOfMemoryError(
            f"out of memory in {phase} at step {step}: {REMEDIES[phase]}; this changes nothing "
            f"that is learned, and can be set when a run resumes (docs/how-to/symptoms.md). The message: {message:.300}"
        ) from error
