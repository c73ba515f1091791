"""GMPO, arXiv:2507.20673.

Log-ratios are clipped per decision on the side of the gain, before they are averaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.ratios import BOUNDS, Bounded

if TYPE_CHECKING:
    from torch import Tensor


@BOUNDS.register("pessimistic")
def pessimistic_bound(log_ratio_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float) -> Bounded:
    """Each decision's log-ratio, clipped on the side where the objective would gain, before a level averages it.

    b = min(log r, high) where A > 0, max(log r, -low) elsewhere.

    Shapes: (B, T) x 2 -> (B, T).   Units: nats, low and high too (0.4).
    Source: GMPO, arXiv:2507.20673, which clips the decisions of a geometric mean.
    """
    gains_BT = advantage_BT > 0
    return Bounded(
        log_ratio_BT.clamp(max=high).where(gains_BT, log_ratio_BT.clamp(min=-low)),
        (log_ratio_BT < -low) & (advantage_BT < 0),
        (log_ratio_BT > high) & gains_BT,
    )
