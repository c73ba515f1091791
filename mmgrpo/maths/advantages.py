"""Advantages: how much better a sample did than the group it was drawn with.

Rewards come as prompt-major matrices. A reward that does not exist (None, or the padding of a smaller group) is False
in ``valid_PG``: it enters no mean and no spread, its value is ignored (it may be NaN), and its advantage is 0. Where
members are compared with each other, a group with fewer than two valid rewards, or with equal ones, says nothing about
them and gets zeros, exactly. ``raw_advantage``, ``verdict_advantage`` and ``ngrpo_advantage`` compare with something
else, and teach from such groups too.

Whatever is measured over the batch (``batch_scaled_advantage``, ``gdpo_advantage``, ``beta_advantage``) is measured
over the matrix that comes in: it has to be the matrix of the whole job, not of one rank.

Axes: P prompts, G group size, R rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.centring import centred, checked_rewards, divided, spread, standardised
from mmgrpo.maths.parted import (
    group_and_part_advantage,
    part_advantage,
    part_baseline_advantage,
    risk_advantage,
    staged_advantage,
)
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.success import (
    beta_advantage,
    difficulty_weighted_advantage,
    f_grpo_advantage,
    mapo_advantage,
    noise_aware_advantage,
    pass_at_k_advantage,
    verdict_advantage,
)
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def group_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, eps: float = 1e-4, correction: int = 1
) -> Tensor:
    """Reward centred on its group and divided by the group's spread.

    A = (r - mean_G r) / (std_G r + eps), std^2 = sum (r - mean_G r)^2 / (n - correction).
    correction is 1 for the sample's spread (TRL, DanceGRPO), 0 for the population's (Flow-GRPO).

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; eps in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1.2. Deviation: eps in the denominator.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    return standardised(reward_PG, valid_PG, eps=eps, correction=correction)


def batch_scaled_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, eps: float = 1e-4, correction: int = 1
) -> Tensor:
    """Reward centred on its group and divided by the spread of the whole batch.

    A = (r - mean_G r) / (std_PG r + eps): a group of nearly equal rewards is not blown up to unit spread.

    Shapes: (P, G) of the whole batch -> (P, G), G >= 2.   Units: any reward scale -> dimensionless.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: "Tricks or Traps", arXiv:2508.08221; the ``global_std`` of Flow-GRPO, arXiv:2505.05470 (which
    takes correction=0). Deviation: eps in the denominator.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    reward_PG = reward_PG.where(valid_PG, 0.0)
    count = valid_PG.sum().clamp(min=1)
    deviation_PG = (reward_PG - reward_PG.sum() / count).where(valid_PG, 0.0)
    std = spread(deviation_PG, valid_PG, dim=(-2, -1), correction=correction)
    return divided(centred(reward_PG, valid_PG), std + eps)


def unscaled_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """Reward centred on its group, in the reward's own units.

    A = r - mean_G r.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: Dr. GRPO, arXiv:2503.20783, sec. 3.2.
    """
    return centred(reward_PG, checked_rewards(reward_PG, valid_PG))


def raw_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """The reward itself: what a sample is worth does not depend on its group.

    A = r: a group of equal rewards other than 0 teaches something.

    Shapes: (P, G) -> (P, G), G >= 1.   Units: those of the reward.
    Raises: ShapeError if not 2-D, or valid_PG is not a bool matrix of the same shape.
    Source: REINFORCE, Williams 1992.
    """
    return reward_PG.where(checked_rewards(reward_PG, valid_PG, least=1), 0.0)


def raw_if_mixed_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """The reward itself in groups whose rewards differ, and nothing in the others.

    A = r where std_G r > 0, else 0: groups that are all right or all wrong do not teach.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: Reinforce-Rej, arXiv:2504.11343, and Minimal-RL's verl/trainer/ppo/core_algos.py,
    compute_reinforce_rej_outcome_advantage.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    mixed_P1 = (centred(reward_PG, valid_PG) != 0).any(1, keepdim=True)
    return reward_PG.where(valid_PG & mixed_P1, 0.0)


def leave_one_out_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """Reward less the mean of the other members' rewards: an unbiased baseline.

    A_i = r_i - mean_{j != i} r_j = n / (n - 1) * (r_i - mean_G r), n valid rewards in the group.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: RLOO, arXiv:2402.14740; Kool et al. 2019.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    count_P1 = valid_PG.sum(-1, keepdim=True)
    return centred(reward_PG, valid_PG) * count_P1 / (count_P1 - 1).clamp(min=1)


def ngrpo_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, highest: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """Reward standardised within its group and one more, imagined sample that got the highest reward there is.

    A = (r - mean r') / (std r' + eps), r' = the group's rewards and ``highest``, std over n of its n + 1 samples.
    A group that is all wrong is pushed away from what it did; one that is all right gets zeros, exactly.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; highest and eps in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: NGRPO, arXiv:2509.18851, and its verl/trainer/ppo/core_algos.py, compute_ngrpo_outcome_advantage. Deviation:
    a lone valid reward is compared with the imagined one too; that code takes it as it is.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    whole_PG = torch.cat([reward_PG, torch.full_like(reward_PG[:, :1], highest)], dim=1)
    counts_PG = torch.cat([valid_PG, valid_PG.any(1, keepdim=True)], dim=1)
    return standardised(whole_PG, counts_PG, eps=eps, correction=1)[:, :-1]


def gdpo_advantage(
    reward_RPG: Tensor,
    weight_R: Tensor,
    valid_RPG: Tensor | None = None,
    penalty_PG: Tensor | None = None,
    *,
    eps: float = 1e-4,
    correction: int = 0,
) -> Tensor:
    """Each reward standardised within its group, then summed by weight, then standardised over the batch.

    z_r = (r - mean_G r) / (std_G r + eps);   s = sum_r w_r z_r - (p - mean_G p);   A = s / (std_PG s + eps).
    The mean of s over the batch is 0 by construction, so the last step only divides. A reward that does not apply to a
    sample adds nothing to its sum; a sample to which no reward applies is left out of the last spread. p is a penalty
    of the sample itself, which is not standardised: it keeps its size beside the z_r.

    Shapes: (R, P, G) of the whole batch, (R,) -> (P, G), G >= 2.   Units: any reward scales -> dimensionless;
    penalty_PG in standard deviations of a reward within its group.
    Raises: ShapeError if not 3-D, G < 2, weight_R is not (R,), or valid_RPG is not bool of the same shape.
    Source: GDPO, arXiv:2601.05242, sec. 3: eq. 4 (each reward), 7 (weights) and 6 (batch). Its code has eps = 1e-4 in
    both denominators, as here, takes correction=1 (as TRL does), and counts a missing reward as 0.
    """
    valid_RPG = checked_rewards(reward_RPG, valid_RPG, ndim=3)
    if weight_R.shape != reward_RPG.shape[:1]:
        raise ShapeError(f"weight_R must be ({reward_RPG.shape[0]},), one per reward, got {tuple(weight_R.shape)}")
    score_RPG = standardised(reward_RPG, valid_RPG, eps=eps, correction=correction)
    total_PG = torch.einsum("r,rpg->pg", weight_R.to(score_RPG), score_RPG)
    valid_PG = valid_RPG.any(0)
    if penalty_PG is not None:
        total_PG = total_PG - centred(penalty_PG.to(total_PG), valid_PG)
    return divided(total_PG, spread(total_PG, valid_PG, dim=(-2, -1), correction=correction) + eps)


def clamp_advantage(advantage: Tensor, *, limit: float) -> Tensor:
    """Advantage held within [-limit, limit].

    Shapes: any -> same.   Units: those of the advantage.   Raises: ConfigError if limit <= 0.
    Source: Flow-GRPO's code, ``adv_clip_max`` = 5 (arXiv:2505.05470).
    """
    if limit <= 0:
        raise ConfigError(f"the advantage limit must be above 0, got {limit}; leave it out to not clamp")
    return advantage.clamp(-limit, limit)


ADVANTAGES: Registry[Callable[..., Tensor]] = Registry(
    {
        "group": group_advantage,
        "batch": batch_scaled_advantage,
        "none": unscaled_advantage,
        "leave_one_out": leave_one_out_advantage,
        "raw": raw_advantage,
        "raw_if_mixed": raw_if_mixed_advantage,
        "ngrpo": ngrpo_advantage,
        "verdict": verdict_advantage,
        "beta": beta_advantage,
        "f_grpo": f_grpo_advantage,
        "mapo": mapo_advantage,
        "noise_aware": noise_aware_advantage,
        "difficulty_weighted": difficulty_weighted_advantage,
        "pass_at_k": pass_at_k_advantage,
        "group_and_part": group_and_part_advantage,
        "part": part_advantage,
        "part_baseline": part_baseline_advantage,
        "staged": staged_advantage,
        "risk": risk_advantage,
    }
)
"""Advantages of a single reward by the name that a method's configuration uses; called with (reward_PG, valid_PG)."""

COMBINING: Registry[Callable[..., Tensor]] = Registry({"gdpo": gdpo_advantage})
"""Advantages of several rewards, which they combine; called with (reward_RPG, weight_R, valid_RPG, penalty_PG)."""

SCALES: Registry[Callable[..., Tensor]] = Registry(ADVANTAGES, COMBINING)
"""All that ``advantage.scale`` may name."""
