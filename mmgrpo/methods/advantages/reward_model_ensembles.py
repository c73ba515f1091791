"""Ensembles of reward models, arXiv:2310.02743.

Several rewards count as the least of them, or as their mean less their disagreement.

Axes: R rewards, P prompts, G group size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.combinations import COMBINATIONS, weighted_rewards
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@COMBINATIONS.register("min")
def minimum(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor) -> Tensor:
    """The least of the weighted rewards that apply to a sample.

    total = min_r w_r r, over those that apply.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (P, G); 0 where none applies.   Units: those of the weighted rewards.
    Raises: ShapeError unless the shapes fit.
    Source: worst-case optimization over an ensemble, Coste et al. 2023, arXiv:2310.02743, sec. 3.
    """
    x_RPG, counts_RPG = weighted_rewards(reward_RPG, weight_R, valid_RPG)
    return x_RPG.where(counts_RPG, torch.inf).amin(0).where(counts_RPG.any(0), 0.0)


@COMBINATIONS.register
def mean_minus_variance(reward_RPG: Tensor, weight_R: Tensor, valid_RPG: Tensor, *, factor: float) -> Tensor:
    """The mean of an ensemble's weighted rewards less their disagreement, over those that apply to a sample.

    total = mean_r x - factor * mean_r (x - mean_r x)^2, x = w_r r.

    Shapes: (R, P, G), (R,), bool (R, P, G) -> (P, G); 0 where none applies.
    Units: those of the weighted rewards; factor in 1 / those.   Raises: ShapeError unless the shapes fit.
    Source: uncertainty-weighted optimization, Coste et al. 2023, arXiv:2310.02743, sec. 3.
    """
    x_RPG, counts_RPG = weighted_rewards(reward_RPG, weight_R, valid_RPG)
    x_RPG = x_RPG.where(counts_RPG, 0.0)
    count_PG = counts_RPG.sum(0).clamp(min=1)
    mean_PG = x_RPG.sum(0) / count_PG
    deviation_RPG = (x_RPG - mean_PG).where(counts_RPG, 0.0)
    return mean_PG - factor * deviation_RPG.square().sum(0) / count_PG
