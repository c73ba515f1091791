"""Reinforce-Rej, arXiv:2504.11343.

The advantage is the raw reward in groups of mixed rewards, and 0 in the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import centered, checked_rewards

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("raw_if_mixed")
def raw_if_mixed_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """The reward itself in groups with differing rewards, and 0 in the others.

    A = r where std_G r > 0, else 0: groups that are all right or all wrong do not train.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: Reinforce-Rej, arXiv:2504.11343, and Minimal-RL's verl/trainer/ppo/core_algos.py,
    compute_reinforce_rej_outcome_advantage.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    mixed_P1 = (centered(reward_PG, valid_PG) != 0).any(1, keepdim=True)
    return reward_PG.where(valid_PG & mixed_P1, 0.0)
