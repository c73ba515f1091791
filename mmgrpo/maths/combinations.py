"""Combines several rewards into one, by which the members of a group are compared.

A reward that does not apply to a sample (False in ``valid_RPG``) is never a zero there, and a reward of weight 0 is
only reported. The result is valid where any reward with a weight applies.

Axes: R rewards, P prompts, G group size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

COMBINATIONS: Registry[Callable[..., Tensor]] = Registry(arguments=("reward_RPG", "weight_R", "valid_RPG"))
"""Combinations by the name that ``advantage.combine`` uses; called with (reward_RPG, weight_R, valid_RPG)."""


@COMBINATIONS.register("sum")
def weighted_sum(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor) -> Tensor:
    """The sum of the rewards by their weights; where one does not apply, its mean over the group is used.

    total = sum_r w_r r', r' = r where it applies, else mean_G r over the members it applies to.
    So a missing reward neither raises nor lowers its sample within the group. A reward that applies to no member is no
    part of that group's sum.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (P, G).   Units: those of the weighted rewards.
    Raises: ShapeError unless the shapes fit.   Deviation: TRL adds nothing for a missing reward (``nansum``).
    """
    valid_RPG = _checked(reward_RPG, weight_R, valid_RPG)
    valid_reward_RPG = reward_RPG.where(valid_RPG, 0.0)
    mean_RP1 = valid_reward_RPG.sum(-1, keepdim=True) / valid_RPG.sum(-1, keepdim=True).clamp(min=1)
    return _weighted_sum(reward_RPG.where(valid_RPG, mean_RP1), weight_R)


@COMBINATIONS.register
def nansum(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor) -> Tensor:
    """The sum of the rewards that apply to a sample, by their weights; a missing reward counts as 0.

    total = sum_r w_r r, over those that apply.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (P, G); 0 where none applies.   Units: those of the weighted rewards.
    Raises: ShapeError unless the shapes fit.   Source: TRL 1.16, GRPOTrainer, ``sum_then_normalize``.
    """
    valid_RPG = _checked(reward_RPG, weight_R, valid_RPG)
    return _weighted_sum(reward_RPG.where(valid_RPG, 0.0), weight_R)


@COMBINATIONS.register
def normalized_sum(
    reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor, *, eps: float = 1e-4, correction: int = 0
) -> Tensor:
    """Each reward standardized within its group, then summed by weight; a missing one adds nothing to a sum around 0.

    total = sum_r w_r (r - mean_G r) / (std_G r + eps), over the members each reward applies to.
    It is centered already: ``scale: none`` trains on it as it is. GDPO (``scale: gdpo``) divides it by its spread over
    the batch.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (P, G), G >= 2.   Units: any reward scales -> dimensionless.
    Raises: ShapeError unless the shapes fit.   Source: GDPO, arXiv:2601.05242, eq. 4 and 7, without eq. 6.
    """
    valid_RPG = _checked(reward_RPG, weight_R, valid_RPG)
    scores = [
        group_advantage(reward_PG, valid_PG, eps=eps, correction=correction)
        for reward_PG, valid_PG in zip(reward_RPG, valid_RPG, strict=True)
    ]
    return _weighted_sum(torch.stack(scores), weight_R)


@COMBINATIONS.register
def geometric_mean(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor) -> Tensor:
    """The geometric mean of the weighted rewards that apply to a sample: all have to be high.

    total = (prod_r max(w_r r, 0))^(1 / R), over the R that apply.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (P, G); 0 where none applies.   Units: those of the weighted rewards.
    Raises: ShapeError unless the shapes fit.
    Source: VIEScore, Ku et al. 2023, arXiv:2312.14867, as EditScore, arXiv:2509.23909, takes it for its overall score.
    """
    x_RPG, counts_RPG = weighted_rewards(reward_RPG, weight_R, valid_RPG)
    x_RPG = x_RPG.clamp(min=0).where(counts_RPG, 1.0)
    count_PG = counts_RPG.sum(0)
    return x_RPG.prod(0).pow(1 / count_PG.clamp(min=1)).where(count_PG > 0, 0.0)


def weighted_rewards(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor) -> tuple[Tensor, Tensor]:
    """Each reward times its weight, and which of them count for a sample: those that apply, with a weight other than 0.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (R, P, G), bool (R, P, G).   Units: those of the weighted rewards.
    Raises: ShapeError unless the shapes fit.
    """
    counts_RPG = _checked(reward_RPG, weight_R, valid_RPG) & (weight_R != 0)[:, None, None]
    return weight_R.to(reward_RPG)[:, None, None] * reward_RPG, counts_RPG


def _checked(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor) -> Tensor:
    shape = reward_RPG.shape
    if reward_RPG.ndim != 3 or weight_R.shape != shape[:1] or valid_RPG.shape != shape or valid_RPG.dtype != torch.bool:
        raise ShapeError(
            f"rewards must be (R, P, G) with weights (R,) and a bool mask, got {tuple(shape)}, "
            f"{tuple(weight_R.shape)} and {valid_RPG.dtype} {tuple(valid_RPG.shape)}"
        )
    return valid_RPG


def _weighted_sum(reward_RPG: Tensor, weight_R: Tensor) -> Tensor:
    return torch.einsum("r,rpg->pg", weight_R.to(reward_RPG), reward_RPG)
