"""Where gradients begin: the one place that others can add to, who have to be differentiated in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError

_others: Callable[[], list[Tensor]] = list
_scale = 1.0


def join(others: Callable[[], list[Tensor]]) -> None:
    """Adds the results of ``others`` to every following backward pass, with coefficients of zero.

    Args:
        others: called before each pass; it may wait. It replaces the function that joined before.
    """
    global _others
    _others = others


@contextmanager
def scaled(scale: float) -> Iterator[None]:
    """A context in which ``backward`` multiplies losses by a number, a power of two."""
    global _scale
    before, _scale = _scale, scale
    try:
        yield
    finally:
        _scale = before


def backward(loss: Tensor) -> None:
    """``loss.backward()`` times the scale, including the results of the joined function.

    Raises PolicyError for a loss without grad.
    """
    if not loss.requires_grad:
        raise PolicyError(
            "the loss of this slice has no gradient: evaluate of the policy must give log-probabilities with grad (and "
            "supervised_loss its mean). Look there for torch.no_grad, inference_mode or detach, and for parameters of "
            "trainable that do not require a gradient"
        )
    joined = _others()
    loss = loss if _scale == 1 else loss * _scale
    torch.autograd.backward([loss, *joined], [None, *map(torch.zeros_like, joined)])


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad`` of a loss, None for parameters that it does not hang on, as ``backward``."""
    joined = _others()
    zeros = [None, *map(torch.zeros_like, joined)]
    return torch.autograd.grad([loss, *joined], parameters, zeros, allow_unused=True)
