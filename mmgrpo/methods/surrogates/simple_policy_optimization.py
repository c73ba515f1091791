"""Simple Policy Optimization (SPO), arXiv:2401.16025.

A quadratic penalty replaces the clip and pulls the ratio back beyond 1 + eps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def spo(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, eps: float) -> Surrogate:
    """A parabola in place of the clip: beyond 1 + eps on the side of the gain it pulls back.

    l = -(A r - |A| (r - 1)^2 / (2 eps)), lowest at r = 1 + eps sign A. There is no bound, so none is reported.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; eps is dimensionless (0.2).
    Source: Simple Policy Optimization, arXiv:2401.16025.
    """
    del logprob_BT
    loss_BT = advantage_BT.abs() * (ratio_BT - 1) ** 2 / (2 * eps) - advantage_BT * ratio_BT
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(loss_BT, never_BT, never_BT)
