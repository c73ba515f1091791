"""Share-GRPO (R1-ShareVL), arXiv:2505.16673.

Advantages are computed over the group and over each variant of the prompt, and added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES, split_groups, standardize
from mmgrpo.maths.group_stats import checked_rewards

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("group_and_part")
def group_and_part_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, eps: float = 1e-6
) -> Tensor:
    """Reward standardized within its group, and within its part of the group, added up.

    A = (r - mean_G r) / (std_G r + eps) + (r - mean_M r) / (std_M r + eps), M the members of the sample's part.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: any reward scale -> dimensionless; eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group, or are of one.
    Source: Share-GRPO (R1-ShareVL), arXiv:2505.16673, and its code (HJYao00/R1-ShareVL, ``core_algos.py``,
        compute_grpo_outcome_advantage): all variants of a question, and each variant.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    part_PKM, valid_PKM = split_groups(reward_PG, parts), split_groups(valid_PG, parts)
    return standardize(reward_PG, valid_PG, eps) + standardize(part_PKM, valid_PKM, eps).flatten(1)
