"""GRPO-LEAD, arXiv:2504.09696.

The group-standardized advantage is weighted up for rare successes and rare failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import checked_rewards, standardized
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("difficulty_weighted")
def difficulty_weighted_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    low: float = 0.4,
    high: float = 1.5,
    middle: float = 0.75,
    steepness: float = 10.0,
    above: float = 0.0,
    eps: float = 1e-6,
    correction: int = 1,
) -> Tensor:
    """Reward standardized within its group, times a weight that is high for rare successes and rare failures.

    A = w(p) z where z > 0, else w(1 - p) z, w(x) = low + (high - low) / (1 + e^(steepness (x - middle))).
    z = (r - mean_G r) / (std_G r + eps), and p is the share of the group that is right, of a reward greater than above.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; above and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: GRPO-LEAD, arXiv:2504.09696, and its verl/verl/trainer/ppo/core_algos.py, logistic_reweight and
    compute_grpo_outcome_advantage.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    standard_PG = standardized(reward_PG, valid_PG, eps=eps, correction=correction)
    right_PG = (reward_PG > above) & valid_PG
    share_P1 = right_PG.sum(1, keepdim=True).to(reward_PG) / valid_PG.sum(1, keepdim=True).clamp(min=1)
    gained_P1 = low + (high - low) * torch.sigmoid(steepness * (middle - share_P1))
    lost_P1 = low + (high - low) * torch.sigmoid(steepness * (middle - (1 - share_P1)))
    return standard_PG * gained_P1.where(standard_PG > 0, lost_P1)
