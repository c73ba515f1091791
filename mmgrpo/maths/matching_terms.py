"""Terms on the prediction errors of re-noised samples: a decision is a sample at a noise level.

A decision's log-probability is minus its error there, so surrogates, ratios and divergences of the library apply as
they are (AWM: ``clipped`` with the divergence ``velocity_mse``); the terms here need more.

Axes: B samples, T noise levels, P groups, G size of the largest group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.terms import Term

if TYPE_CHECKING:
    from torch import Tensor


def optimality(advantage_BT: Tensor, *, limit: float) -> Tensor:
    """The advantage as a share of optimality: clip(A / (2 c) + 1 / 2, 0, 1).

    Shapes: (B, T) -> (B, T).   Source: DiffusionNFT, arXiv:2509.16117.
    """
    return (advantage_BT / (2 * limit) + 0.5).clamp(0, 1)


MATCHING_TERMS: Mapping[str, Callable[..., Term]] = MappingProxyType({})
"""Terms on prediction errors by the name that a method's configuration uses; called with their numbers."""
