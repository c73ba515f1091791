"""F-GRPO, arXiv:2602.06717.

The group-standardized advantage is scaled down in groups where most samples are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import checked_rewards, standardized
from mmgrpo.maths.pass_rate import right_share

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("f_grpo")
def f_grpo_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    gamma: float = 0.5,
    at_least: float = 0.5,
    eps: float = 1e-4,
    correction: int = 1,
) -> Tensor:
    """Reward standardized within its group, and down-weighted where most of the group is right.

    A = (1 - p)^gamma (r - mean_G r) / (std_G r + eps), p = the share of the group that is right.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; at_least and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: F-GRPO, arXiv:2602.06717, sec. 4, with its gamma of 0.5.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    standard_PG = standardized(reward_PG, valid_PG, eps=eps, correction=correction)
    return standard_PG * (1 - right_share(reward_PG, valid_PG, at_least)) ** gamma
