"""Memory that ran out, whatever library says so and in whatever words."""

from __future__ import annotations

import torch

_SAID = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
"""What is in the message of the plain RuntimeErrors that CPUs, cuBLAS and Metal raise."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory left, of the machine or of the accelerator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)
