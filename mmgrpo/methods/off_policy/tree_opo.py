"""Tree-OPO, arXiv:2509.09284.

The baseline of a sample is the mean reward of the samples that continue from its prefix or a longer one of the same
solution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import ADVANTAGES, split_groups
from mmgrpo.maths.group_stats import centered, checked_rewards

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("staged")
def staged_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, alpha: float = 0.5) -> Tensor:
    """Reward less a share of the success rate from the start of its answer, or later; then centered on the group.

    A = (r - alpha V) - mean_G (r - alpha V), V the mean reward of the sample's part and of all parts after it: the
    parts begin ever later in one solution, so that these continue from its beginning.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: those of the reward; alpha is dimensionless.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group.
    Source: Tree-OPO, arXiv:2509.09284, its expectation baseline V(p), of a single trace in place of a tree.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    part_PKM, valid_PKM = split_groups(reward_PG.where(valid_PG, 0.0), parts), split_groups(valid_PG, parts)
    sum_PK, count_PK = (value_PKM.sum(2).flip(1).cumsum(1).flip(1) for value_PKM in (part_PKM, valid_PKM))
    value_PKM = (sum_PK / count_PK.clamp(min=1))[:, :, None].expand_as(part_PKM)
    return centered(reward_PG - alpha * value_PKM.flatten(1), valid_PG)
