"""CISPO, arXiv:2506.13585.

The policy gradient is weighted by the clipped, detached ratio, so that every decision keeps a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate, bound_like, clamped_ratio

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def cispo(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float | None, high: float) -> Surrogate:
    """Policy gradient weighted by the bounded ratio: every decision keeps a gradient.

    l = -A sg(clip(r, 1 - low, 1 + high)) logprob, sg = no gradient.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats; low=None leaves small ratios as they are.
    Source: MiniMax-M1 (CISPO), arXiv:2506.13585, eq. 4. TRL's ``epsilon_high`` is the absolute cap, 1 + high here.
    """
    floor = None if low is None else bound_like(1 - low, ratio_BT)
    weight_BT = clamped_ratio(ratio_BT.detach(), floor, bound_like(1 + high, ratio_BT))
    counts_BT = advantage_BT != 0
    return Surrogate(
        -advantage_BT * weight_BT * logprob_BT,
        (weight_BT > ratio_BT) & counts_BT,
        (weight_BT < ratio_BT) & counts_BT,
    )
