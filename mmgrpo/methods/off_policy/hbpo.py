"""HBPO, arXiv:2507.15844.

Each part of a group has its own expected reward, and the part's mean reward above it is added to the advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES, split_groups, standardize
from mmgrpo.maths.group_stats import checked_rewards

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("part_baseline")
def part_baseline_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    baselines: Sequence[float],
    weight: float = 1.0,
    eps: float = 1e-6,
) -> Tensor:
    """Reward standardized within its group, plus the excess of its part of the group over a baseline.

    A = (r - mean_G r) / (std_G r + eps) + weight (mean_M r - b), M the members of the sample's part, b its baseline. A
    group of equal rewards trains too.

    Shapes: (P, G) -> (P, G), a part for each of the baselines.   Units: baselines and eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for a number of baselines that does not divide the group.
    Source: HBPO, arXiv:2507.15844, and its code (ZJU-REAL/HBPO, ``core_algos.py``, compute_grpo_outcome_advantage),
        which adds the second term twice.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    part_PKM, valid_PKM = split_groups(reward_PG, len(baselines)), split_groups(valid_PG, len(baselines))
    mean_PK1 = part_PKM.where(valid_PKM, 0.0).sum(2, keepdim=True) / valid_PKM.sum(2, keepdim=True).clamp(min=1)
    above_PK1 = mean_PK1 - reward_PG.new_tensor(list(baselines))[:, None]
    above_PG = above_PK1.expand_as(part_PKM).where(valid_PKM, 0.0).flatten(1)
    return standardize(reward_PG, valid_PG, eps) + weight * above_PG
