"""Advantages of rewards that say right or wrong, by how many of the group were right.

A sample is right where its reward is at least ``at_least``. What a group is, and what ``valid_PG`` says, is as in
``mmgrpo.maths.advantages``, whose registry holds these functions too.

Axes: P prompts, G group size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.centring import centred, checked_rewards, divided, standardised
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def verdict_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, right: float = 0.1, wrong: float = -1.0, at_least: float = 0.5
) -> Tensor:
    """One number for what is right and one for what is wrong, whatever the others of the group did.

    A = right where r >= at_least, else wrong. right 0.1 and wrong -1 is W-REINFORCE, 0 and -1 learns from what is wrong
    alone (NSR), 1 and 0 from what is right alone (PSR, RAFT).

    Shapes: (P, G) -> (P, G), G >= 2.   Units: right and wrong are advantages; at_least in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: arXiv:2506.01347, and RLVR-Decomposed's verl/trainer/ppo/core_algos.py, compute_psr_nsr_outcome_advantage;
    RAFT, arXiv:2304.06767.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    right_PG = torch.full_like(reward_PG, right)
    return right_PG.where(reward_PG >= at_least, wrong).where(valid_PG, 0.0)


def beta_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, low: float = 0.0, high: float = 1.0, limit: float = 1e6
) -> Tensor:
    """Reward centred on its group and divided by the density, at the group's mean, of the batch's success rates.

    A = (r - p) / Beta(p; alpha, beta), p = mean_G r, with Beta fitted to the p of all groups.
    alpha = max(1 + a / 3, 1), beta = max(1 + b / 3, 1), a = c m, b = c (1 - m), c = m (1 - m) / v - 1, with m and v the
    mean and the sample variance of p over the groups. Rewards are first mapped from low .. high to 0 .. 1, the factor
    1 / Beta is held within 0 .. limit, and it is 1 where all p are equal or there is one group.

    Shapes: (P, G) of the whole batch -> (P, G), G >= 2.   Units: low and high are the least and the greatest reward
    there is; any reward scale -> dimensionless.
    Raises: ShapeError if not 2-D, G < 2, valid_PG is not a bool matrix of the same shape, or rewards lie outside low to
    high; ConfigError if low >= high.
    Source: BNPO, arXiv:2506.02864, and its recipe/bnpo/src/bnpo_ray_trainer.py, compute_bnpo_outcome_advantage.
    Deviation: groups of fewer than two valid rewards are left out of m and v, where that code counts their mean as 0;
    and that code gives no number where all p are equal.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    if low >= high:
        raise ConfigError(f"the least reward must lie below the greatest, got low={low} and high={high}")
    _require_within(reward_PG, valid_PG, low, high)
    unit_PG = ((reward_PG - low) / (high - low)).where(valid_PG, 0.0)
    count_P = valid_PG.sum(1)
    rate_P = unit_PG.sum(1) / count_P.clamp(min=1)
    density_P = _fitted_density(rate_P, count_P >= 2)
    return centred(unit_PG, valid_PG) * (1 / density_P).clamp(0.0, limit)[:, None]


def f_grpo_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    gamma: float = 0.5,
    at_least: float = 0.5,
    eps: float = 1e-4,
    correction: int = 1,
) -> Tensor:
    """Reward standardised within its group, and weighed down where most of the group is right.

    A = (1 - p)^gamma (r - mean_G r) / (std_G r + eps), p = the share of the group that is right.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; at_least and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: F-GRPO, arXiv:2602.06717, sec. 4, with its gamma of 0.5.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    standard_PG = standardised(reward_PG, valid_PG, eps=eps, correction=correction)
    return standard_PG * (1 - _right_share(reward_PG, valid_PG, at_least)) ** gamma


def mapo_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    at_least: float = 0.5,
    eps: float = 1e-4,
    correction: int = 0,
) -> Tensor:
    """Deviation over the group's spread where its members disagree, over the group's mean where they agree.

    A = (1 - l) (r - mu) / (std_G r + eps) + l (r - mu) / mu, mu = mean_G r, l = 1 - 4 p (1 - p), p = the share of the
    group that is right.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: rewards from 0 on -> dimensionless; at_least and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, valid_PG is not a bool matrix of the same shape, or rewards are negative.
    Source: MAPO, arXiv:2509.18849, eq. 3 to 6. Deviation: eps in the denominator.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    _require_within(reward_PG, valid_PG, 0.0, torch.inf)
    standard_PG = standardised(reward_PG, valid_PG, eps=eps, correction=correction)
    mean_P1 = reward_PG.where(valid_PG, 0.0).sum(1, keepdim=True) / valid_PG.sum(1, keepdim=True).clamp(min=1)
    share_P1 = _right_share(reward_PG, valid_PG, at_least)
    certainty_P1 = 1 - 4 * share_P1 * (1 - share_P1)
    return (1 - certainty_P1) * standard_PG + certainty_P1 * divided(centred(reward_PG, valid_PG), mean_P1)


def noise_aware_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    flips: float = 0.1,
    at_least: float = 0.5,
    eps: float = 1e-8,
    correction: int = 1,
) -> Tensor:
    """Reward standardised within its group, and weighed down where errors of the verifier may explain the group.

    A = w (r - mean_G r) / (std_G r + eps), w = (1 - 2 f) sqrt(t (1 - t) / (q (1 - q))), t = (q - f) / (1 - 2 f).
    q is the share of the group that is right, f = flips the chance that a verdict is the wrong one, and t is held
    within 0 .. 1: where q is at most f, or at least 1 - f, the group teaches nothing.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; at_least and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape; ConfigError if flips is
    not from 0 to below 0.5.
    Source: S-GRPO, arXiv:2508.05928, and its train/train_S-GRPO.py, group_weight. Deviation: that code adds 1e-8 under
    both roots of the weight.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    if not 0 <= flips < 0.5:
        raise ConfigError(f"flips is the chance of a wrong verdict: choose it from 0 to below 0.5, got {flips}")
    standard_PG = standardised(reward_PG, valid_PG, eps=eps, correction=correction)
    seen_P1 = _right_share(reward_PG, valid_PG, at_least)
    true_P1 = ((seen_P1 - flips) / (1 - 2 * flips)).clamp(0.0, 1.0)
    kept_P1 = divided(true_P1 * (1 - true_P1), seen_P1 * (1 - seen_P1))
    return standard_PG * (1 - 2 * flips) * kept_P1.sqrt()


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
    """Reward standardised within its group, times a weight that is high for rare successes and rare failures.

    A = w(p) z where z > 0, else w(1 - p) z, w(x) = low + (high - low) / (1 + e^(steepness (x - middle))).
    z = (r - mean_G r) / (std_G r + eps), and p is the share of the group that is right, of a reward greater than above.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; above and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: GRPO-LEAD, arXiv:2504.09696, and its verl/verl/trainer/ppo/core_algos.py, logistic_reweight and
    compute_grpo_outcome_advantage.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    standard_PG = standardised(reward_PG, valid_PG, eps=eps, correction=correction)
    right_PG = (reward_PG > above) & valid_PG
    share_P1 = right_PG.sum(1, keepdim=True).to(reward_PG) / valid_PG.sum(1, keepdim=True).clamp(min=1)
    gained_P1 = low + (high - low) * torch.sigmoid(steepness * (middle - share_P1))
    lost_P1 = low + (high - low) * torch.sigmoid(steepness * (middle - (1 - share_P1)))
    return standard_PG * gained_P1.where(standard_PG > 0, lost_P1)


def pass_at_k_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, k: int, at_least: float = 0.5, eps: float = 1e-6
) -> Tensor:
    """What a sample adds to the chance that one of k drawn from the group is right.

    A = (1 - R) / (s + eps) if right, (1 - R - W) / (s + eps) if wrong, s = sqrt(R (1 - R)), with c of n members right,
    R = 1 - C(n - c, k) / C(n, k) and W = C(n - c - 1, k - 1) / C(n - 1, k - 1). With k = 1 it is the reward centred and
    over the population's spread. A group of fewer than k valid rewards says nothing, nor does one without a right
    member or with fewer than k wrong ones.

    Shapes: (P, G) -> (P, G), G >= k.   Units: dimensionless; at_least in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape; ConfigError if k is not
    from 1 to G.
    Source: Pass@k Training, arXiv:2508.10751, and Passk_Training's code/passk_adv.py, calc_adv.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    G = reward_PG.shape[1]
    if not 1 <= k <= G:
        raise ConfigError(f"pass_at_k draws k of the group: choose k from 1 to the group size, {G}, got {k}")
    right_PG = (reward_PG >= at_least) & valid_PG
    n_P1 = valid_PG.sum(1, keepdim=True).to(reward_PG)
    wrong_P1 = n_P1 - right_PG.sum(1, keepdim=True)
    passes_P1 = 1 - _all_wrong(wrong_P1, n_P1, k)
    scale_P1 = (passes_P1 * (1 - passes_P1)).sqrt() + eps
    others_P1 = _all_wrong(wrong_P1 - 1, n_P1 - 1, k - 1)
    advantage_PG = ((1 - passes_P1) / scale_P1).where(right_PG, (1 - passes_P1 - others_P1) / scale_P1)
    says_P1 = (n_P1 >= k) & (wrong_P1 >= k) & (wrong_P1 < n_P1)
    return advantage_PG.where(valid_PG & says_P1, 0.0)


def _all_wrong(wrong: Tensor, count: Tensor, k: int) -> Tensor:
    """C(wrong, k) / C(count, k): the chance that k drawn of count, of which some are wrong, are all so."""
    chance = torch.ones_like(count)
    for drawn in range(k):
        chance = chance * (wrong - drawn).clamp(min=0) / (count - drawn).clamp(min=1)
    return chance


def _right_share(reward_PG: Tensor, valid_PG: Tensor, at_least: float) -> Tensor:
    """Share of the valid rewards of a group that are at least ``at_least``, as (P, 1)."""
    right_PG = (reward_PG >= at_least) & valid_PG
    return right_PG.sum(1, keepdim=True).to(reward_PG) / valid_PG.sum(1, keepdim=True).clamp(min=1)


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


def _require_within(reward_PG: Tensor, valid_PG: Tensor, low: float, high: float) -> None:
    outside_PG = valid_PG & ~((reward_PG >= low) & (reward_PG <= high))
    if outside_PG.any():
        raise ShapeError(
            f"these advantages are of rewards from {low:g} to {high:g}, got {reward_PG[outside_PG][0]:g}; weights, a "
            "clip or a divergence taken off the reward may lead out of them"
        )
