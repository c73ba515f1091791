"""MAPO, arXiv:2509.18849.

The deviation from the group mean is divided by the group's spread or by its mean, by how far the group agrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import centered, checked_rewards, divided, standardized
from mmgrpo.maths.pass_rate import require_within, right_share
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("mapo")
def mapo_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    at_least: float = 0.5,
    eps: float = 1e-4,
    correction: int = 0,
) -> Tensor:
    """Deviation over the group's spread where its members disagree, over the group's mean where they agree.

    A = (1 - l) (r - mu) / (std_G r + eps) + l (r - mu) / mu, mu = mean_G r, l = 1 - 4 p (1 - p), p = the share of the
    group that is right.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: rewards from 0 on -> dimensionless; at_least and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, valid_PG is not a bool matrix of the same shape, or rewards are negative.
    Source: MAPO, arXiv:2509.18849, eq. 3 to 6. Deviation: eps in the denominator.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    require_within(reward_PG, valid_PG, 0.0, torch.inf)
    standard_PG = standardized(reward_PG, valid_PG, eps=eps, correction=correction)
    mean_P1 = reward_PG.where(valid_PG, 0.0).sum(1, keepdim=True) / valid_PG.sum(1, keepdim=True).clamp(min=1)
    share_P1 = right_share(reward_PG, valid_PG, at_least)
    certainty_P1 = 1 - 4 * share_P1 * (1 - share_P1)
    return (1 - certainty_P1) * standard_PG + certainty_P1 * divided(centered(reward_PG, valid_PG), mean_P1)
