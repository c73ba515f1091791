"""Where gradients begin: the one place that others can add to, who have to be differentiated in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_others: Callable[[], list[Tensor]] = list


def join(others: Callable[[], list[Tensor]]) -> None:
    """Adds the results of ``others`` to every following backward pass, with coefficients of zero.

    Args:
        others: called before each pass; it may wait. It replaces the function that joined before.
    """
    global _others
    _others = others


def backward(loss: Tensor) -> None:
    """``loss.backward()``, including the results of the joined function."""
    joined = _others()
    torch.autograd.backward([loss, *joined], [None, *map(torch.zeros_like, joined)])


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad`` of a loss, None for parameters that it does not hang on, as ``backward``."""
    joined = _others()
    zeros = [None, *map(torch.zeros_like, joined)]
    return torch.autograd.grad([loss, *joined], parameters, zeros, allow_unused=True)
