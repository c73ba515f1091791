"""RTO (reinforced token optimization), arXiv:2404.18922.

The credit of a decision is the log-ratio of two views, summed over the decisions that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.values import of_view

if TYPE_CHECKING:
    from torch import Tensor


def _check_returns_in_view(limit: float | None) -> None:
    if limit is not None and limit <= 0:
        raise ConfigError(f"returns_in_view clips the rewards of decisions to a limit above 0, got {limit}")


@ESTIMATORS.register
@estimator(
    values=lambda view, base: (of_view(view),) if base is None else (of_view(view), of_view(base)),
    check=_check_returns_in_view,
)
def returns_in_view(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    view: str,
    base: str | None = None,
    weight: float = 1.0,
    limit: float | None = None,
) -> Tensor:
    """The sum of the log-ratios of a view to a base over a decision and later ones, relative to the group.

    r_t = clip(weight (logprob_view - logprob_base), -limit, limit) and R_t = sum_{s >= t} r_s over the kept decisions
    that have both;   A_t <- A_t + R_t - mean_G R_t, where members that have ended by then have 0. The base is a view,
    or null: the behavior policy.

    Units: nats times weight; limit in the units of r_t.   Raises: ConfigError for a limit that is not above 0.
    Source: RTO, arXiv:2404.18922, and its code (zkshan2002/RTO, ``experience_maker.py``, ``compute_reward``), with
        gamma 1. Deviation: the group's mean in place of a learned value.
    """
    view_BT = feedback.view_mask(view) if base is None else feedback.view_mask(view) & feedback.view_mask(base)
    base_BT = feedback.old_logprob_BT if base is None else feedback[of_view(base)]
    worth_BT = (weight * (feedback[of_view(view)] - base_BT)).where(view_BT, 0.0)
    worth_BT = worth_BT if limit is None else worth_BT.clamp(-limit, limit)
    to_come_BT = worth_BT.flip(1).cumsum(1).flip(1)
    groups, valid_B = feedback.groups, feedback.valid_B & view_BT.any(1)
    valid_PG = groups.valid(valid_B)
    to_come_TPG = groups.matrix(to_come_BT.T).where(valid_PG, 0.0)
    mean_TP1 = to_come_TPG.sum(-1, keepdim=True) / valid_PG.sum(-1, keepdim=True).clamp(min=1)
    gain_BT = groups.rows((to_come_TPG - mean_TP1).where(valid_PG, 0.0)).T
    return advantage_BT + gain_BT.where(feedback.mask_BT, 0.0).to(advantage_BT)
