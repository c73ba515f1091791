"""BNPO, arXiv:2506.02864.

The centered reward is divided by the density of a Beta distribution fitted to the success rates of all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import centered, checked_rewards
from mmgrpo.maths.pass_rate import require_within
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("beta")
def beta_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, low: float = 0.0, high: float = 1.0, limit: float = 1e6
) -> Tensor:
    """Reward centered on its group and divided by the density, at the group's mean, of the batch's success rates.

    A = (r - p) / Beta(p; alpha, beta), p = mean_G r, with Beta fitted to the p of all groups.
    alpha = max(1 + a / 3, 1), beta = max(1 + b / 3, 1), a = c m, b = c (1 - m), c = m (1 - m) / v - 1, with m and v the
    mean and the sample variance of p over the groups. Rewards are first mapped from low .. high to 0 .. 1, the factor
    1 / Beta is clamped to 0 .. limit, and it is 1 where all p are equal or there is one group.

    Shapes: (P, G) of the complete batch -> (P, G), G >= 2.   Units: low and high are the lowest and the highest
    possible reward; any reward scale -> dimensionless.
    Raises: ShapeError if not 2-D, G < 2, valid_PG is not a bool matrix of the same shape, or rewards are outside low to
    high; ConfigError if low >= high.
    Source: BNPO, arXiv:2506.02864, and its recipe/bnpo/src/bnpo_ray_trainer.py, compute_bnpo_outcome_advantage.
    Deviation: groups of fewer than two valid rewards are left out of m and v, where that code counts their mean as 0;
    and that code returns no number where all p are equal.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    if low >= high:
        raise ConfigError(f"low must be below high, got low={low} and high={high}")
    require_within(reward_PG, valid_PG, low, high)
    unit_PG = ((reward_PG - low) / (high - low)).where(valid_PG, 0.0)
    count_P = valid_PG.sum(1)
    rate_P = unit_PG.sum(1) / count_P.clamp(min=1)
    density_P = _fitted_density(rate_P, count_P >= 2)
    return centered(unit_PG, valid_PG) * (1 / density_P).clamp(0.0, limit)[:, None]


def _fitted_density(rate_P: Tensor, counts_P: Tensor) -> Tensor:
    """Beta's density at each rate, fitted to the rates that count; 1 where they do not differ."""
    num = counts_P.sum()
    mean = rate_P.where(counts_P, 0.0).sum() / num.clamp(min=1)
    variance = (rate_P - mean).where(counts_P, 0.0).square().sum() / (num - 1).clamp(min=1)
    concentration = mean * (1 - mean) / variance.where(variance > 0, 1.0) - 1
    alpha = (1 + concentration * mean / 3).clamp(min=1.0)
    beta = (1 + concentration * (1 - mean) / 3).clamp(min=1.0)
    log_norm = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    log_density_P = torch.xlogy(alpha - 1, rate_P) + torch.xlogy(beta - 1, 1 - rate_P) - log_norm
    highest, lowest = rate_P.where(counts_P, 0.0).amax(), rate_P.where(counts_P, 1.0).amin()
    return log_density_P.exp().where((num >= 2) & (highest > lowest), 1.0)
