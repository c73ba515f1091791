"""REC (group-relative REINFORCE, clipped on one side), arXiv:2509.24203.

Advantage-weighted likelihood without gradient where the ratio passes a bound on the side of the gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate, bound_like

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def one_sided(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float) -> Surrogate:
    """Advantage-weighted log-likelihood that stops where the ratio has gone past a bound on the side of the gain.

    l = -A logprob where (A >= 0 and r <= 1 + high) or (A <= 0 and r >= 1 - low), else 0.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats; low and high are dimensionless.
    Source: REC-OneSide without importance weights, arXiv:2509.24203, and its code (modelscope/Trinity-RFT,
    trinity/algorithm/policy_loss_fn/rec_policy_loss.py, ``clip_mode: one-side``).
    """
    floor, ceiling = bound_like(1 - low, ratio_BT), bound_like(1 + high, ratio_BT)
    low_BT = (ratio_BT.detach() < floor) & (advantage_BT < 0)
    high_BT = (ratio_BT.detach() > ceiling) & (advantage_BT > 0)
    loss_BT = (-advantage_BT * logprob_BT).where(~(low_BT | high_BT), 0.0)
    return Surrogate(loss_BT, low_BT, high_BT)
