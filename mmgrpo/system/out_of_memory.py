"""Recognition of out-of-memory errors of all libraries, and release of the memory of what failed."""

from __future__ import annotations

import gc
import traceback

import torch

_MESSAGES = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
"""Parts of the messages of RuntimeErrors from CPUs, cuBLAS and Metal."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of the machine or the accelerator was exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error).lower() for message in _MESSAGES)


def free_memory_of(error: BaseException) -> None:
    """Frees the tensors of the frames that an error ended, such as activations, and the cache of the GPU."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
