"""Klear-Reasoner (GPPO), arXiv:2508.07629.

The ratio is clipped in value, and the gradient of clipped decisions is scaled to the bound instead of removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate, bound_like, clamped_ratio
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def gppo(
    ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float, bound: float | None = None
) -> Surrogate:
    """``clipped`` with bounds that clip the ratio and keep its gradient, scaled to the bound.

    l = max(-A r, -A r sg(clip(r, 1 - low, 1 + high) / r)), sg = no gradient.
    Where A < 0 and there is a bound it is min(l, -A bound), which has none. Flags mark where a bound acted.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; bound is a ratio, above 1 + high, None for none.
    Source: Klear-Reasoner (GPPO), arXiv:2508.07629, and its code (suu990901/KlearReasoner, ``compute_gppo_loss``).
    """
    del logprob_BT
    floor, ceiling = bound_like(1 - low, ratio_BT), bound_like(1 + high, ratio_BT)
    clamped_BT = clamped_ratio(ratio_BT, floor, ceiling).detach()
    inside_BT = clamped_BT == ratio_BT
    gradient_ratio_BT = ratio_BT.where(inside_BT, clamped_BT * (ratio_BT / ratio_BT.detach()))
    loss_BT = torch.maximum(-advantage_BT * ratio_BT, -advantage_BT * gradient_ratio_BT)
    low_BT, high_BT = (ratio_BT < floor) & (advantage_BT < 0), (ratio_BT > ceiling) & (advantage_BT > 0)
    if bound is None:
        return Surrogate(loss_BT, low_BT, high_BT)
    negative_BT = advantage_BT < 0
    capped_BT = torch.minimum(loss_BT, -advantage_BT * bound)
    return Surrogate(capped_BT.where(negative_BT, loss_BT), low_BT, high_BT | (negative_BT & (ratio_BT > bound)))
