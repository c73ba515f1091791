"""NGRPO, arXiv:2509.18851.

Rewards are standardized within the group and one virtual sample of the highest reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import checked_rewards, standardized
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("ngrpo")
def ngrpo_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, highest: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """Reward standardized within its group and one imagined sample with the highest possible reward.

    A = (r - mean r') / (std r' + eps), r' = the group's rewards and ``highest``, std over n of its n + 1 samples.
    A group that is all wrong gets negative advantages; one that is all right gets exact zeros.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; highest and eps in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: NGRPO, arXiv:2509.18851, and its verl/trainer/ppo/core_algos.py, compute_ngrpo_outcome_advantage. Deviation:
    a lone valid reward is compared with the imagined one too; that code does not change it.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    extended_PG = torch.cat([reward_PG, torch.full_like(reward_PG[:, :1], highest)], dim=1)
    counts_PG = torch.cat([valid_PG, valid_PG.any(1, keepdim=True)], dim=1)
    return standardized(extended_PG, counts_PG, eps=eps, correction=1)[:, :-1]
