"""GDPO (group reward-decoupled normalization), arXiv:2601.05242.

Each reward is standardized within its group before the weighted sum, which is then standardized over the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.maths.advantages import COMBINING
from mmgrpo.maths.group_stats import centered, checked_rewards, divided, spread, standardized
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@COMBINING.register("gdpo")
def gdpo_advantage(
    reward_RPG: Tensor,
    weight_R: Tensor,
    valid_RPG: Tensor | None = None,
    penalty_PG: Tensor | None = None,
    *,
    eps: float = 1e-4,
    correction: int = 0,
) -> Tensor:
    """Each reward standardized within its group, then summed by weight, then standardized over the batch.

    z_r = (r - mean_G r) / (std_G r + eps);   s = sum_r w_r z_r - (p - mean_G p);   A = s / (std_PG s + eps).
    The mean of s over the batch is 0 by construction, so the last step only divides. A reward that does not apply to a
    sample adds nothing to its sum; a sample to which no reward applies is left out of the last spread. p is a penalty
    of the sample itself, which is not standardized: it keeps its size relative to the z_r.

    Shapes: (R, P, G) of the complete batch, (R,) -> (P, G), G >= 2.   Units: any reward scales -> dimensionless;
    penalty_PG in standard deviations of a reward within its group.
    Raises: ShapeError if not 3-D, G < 2, weight_R is not (R,), or valid_RPG is not bool of the same shape.
    Source: GDPO, arXiv:2601.05242, sec. 3: eq. 4 (each reward), 7 (weights) and 6 (batch). Its code has eps = 1e-4 in
    both denominators, as here, takes correction=1 (as TRL does), and counts a missing reward as 0.
    """
    valid_RPG = checked_rewards(reward_RPG, valid_RPG, ndim=3)
    if weight_R.shape != reward_RPG.shape[:1]:
        raise ShapeError(f"weight_R must be ({reward_RPG.shape[0]},), one per reward, got {tuple(weight_R.shape)}")
    score_RPG = standardized(reward_RPG, valid_RPG, eps=eps, correction=correction)
    total_PG = torch.einsum("r,rpg->pg", weight_R.to(score_RPG), score_RPG)
    valid_PG = valid_RPG.any(0)
    if penalty_PG is not None:
        total_PG = total_PG - centered(penalty_PG.to(total_PG), valid_PG)
    return divided(total_PG, spread(total_PG, valid_PG, dim=(-2, -1), correction=correction) + eps)
