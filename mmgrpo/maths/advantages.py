"""Advantages: how much better a sample is than the group that it was sampled with.

Rewards come as prompt-major matrices. A reward that does not exist (None, or the padding of a smaller group) is False
in ``valid_PG``: it enters no mean and no spread, its value is ignored (it may be NaN), and its advantage is 0. Where
members are compared with each other, a group with fewer than two valid rewards, or with equal ones, gets exact
zeros. ``raw_advantage``, ``verdict_advantage`` and ``ngrpo_advantage`` compare with another
baseline, and train on such groups too.

Statistics of the batch (``batch_scaled_advantage``, ``gdpo_advantage``, ``beta_advantage``) are taken
over the matrix that is passed: it must be the matrix of the complete job, not of one rank.

Axes: P prompts, G group size, R rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.group_stats import centered, checked_rewards, divided, spread, standardized
from mmgrpo.maths.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

COMBINING: Registry[Callable[..., Tensor]] = Registry(arguments=("reward_RPG", "weight_R", "valid_RPG", "penalty_PG"))
"""Advantages of several rewards, which they combine; called with (reward_RPG, weight_R, valid_RPG, penalty_PG)."""

ADVANTAGES: Registry[Callable[..., Tensor]] = Registry()
"""Advantages of a single reward by the name that a method's configuration uses; called with (reward_PG, valid_PG)."""


@ADVANTAGES.register("group")
def group_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, eps: float = 1e-4, correction: int = 1
) -> Tensor:
    """Reward centered on its group and divided by the group's spread.

    A = (r - mean_G r) / (std_G r + eps), std^2 = sum (r - mean_G r)^2 / (n - correction).
    correction is 1 for the sample's spread (TRL, DanceGRPO), 0 for the population's (Flow-GRPO).

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; eps in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1.2. Deviation: eps in the denominator.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    return standardized(reward_PG, valid_PG, eps=eps, correction=correction)


@ADVANTAGES.register("batch")
def batch_scaled_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, eps: float = 1e-4, correction: int = 1
) -> Tensor:
    """Reward centered on its group and divided by the spread of the batch.

    A = (r - mean_G r) / (std_PG r + eps): a group of nearly equal rewards is not scaled to unit spread.

    Shapes: (P, G) of the complete batch -> (P, G), G >= 2.   Units: any reward scale -> dimensionless.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: "Tricks or Traps", arXiv:2508.08221; the ``global_std`` of Flow-GRPO, arXiv:2505.05470 (which
    takes correction=0). Deviation: eps in the denominator.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    reward_PG = reward_PG.where(valid_PG, 0.0)
    count = valid_PG.sum().clamp(min=1)
    deviation_PG = (reward_PG - reward_PG.sum() / count).where(valid_PG, 0.0)
    std = spread(deviation_PG, valid_PG, dim=(-2, -1), correction=correction)
    return divided(centered(reward_PG, valid_PG), std + eps)


@ADVANTAGES.register("none")
def unscaled_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """Reward centered on its group, in the units of the reward.

    A = r - mean_G r.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: Dr. GRPO, arXiv:2503.20783, sec. 3.2.
    """
    return centered(reward_PG, checked_rewards(reward_PG, valid_PG))


@ADVANTAGES.register("raw")
def raw_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """The reward itself: the advantage of a sample does not depend on its group.

    A = r: a group of equal rewards other than 0 trains too.

    Shapes: (P, G) -> (P, G), G >= 1.   Units: those of the reward.
    Raises: ShapeError if not 2-D, or valid_PG is not a bool matrix of the same shape.
    Source: REINFORCE, Williams 1992.
    """
    return reward_PG.where(checked_rewards(reward_PG, valid_PG, least=1), 0.0)


@ADVANTAGES.register("leave_one_out")
def leave_one_out_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """Reward less the mean of the other members' rewards: an unbiased baseline.

    A_i = r_i - mean_{j != i} r_j = n / (n - 1) * (r_i - mean_G r), n valid rewards in the group.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: RLOO, arXiv:2402.14740; Kool et al. 2019.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    count_P1 = valid_PG.sum(-1, keepdim=True)
    return centered(reward_PG, valid_PG) * count_P1 / (count_P1 - 1).clamp(min=1)


def clamp_advantage(advantage: Tensor, *, limit: float) -> Tensor:
    """Advantage clamped to [-limit, limit].

    Shapes: any -> same.   Units: those of the advantage.   Raises: ConfigError if limit <= 0.
    Source: Flow-GRPO's code, ``adv_clip_max`` = 5 (arXiv:2505.05470).
    """
    if limit <= 0:
        raise ConfigError(f"the advantage limit must be above 0, got {limit}; leave it out to not clamp")
    return advantage.clamp(-limit, limit)


@ADVANTAGES.register("part")
def part_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, eps: float = 1e-6) -> Tensor:
    """Reward standardized within its part of the group.

    A = (r - mean_M r) / (std_M r + eps), M the members of the sample's part.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: any reward scale -> dimensionless; eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group.
    Source: each expert's samples compared among themselves: MEML-GRPO, arXiv:2508.09670; each paraphrase's: PS-GRPO,
        arXiv:2510.04392.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    return standardize(split_groups(reward_PG, parts), split_groups(valid_PG, parts), eps).flatten(1)


def split_groups(value_PG: Tensor, parts: int) -> Tensor:
    """(P, K, M), the members of each part side by side."""
    G = value_PG.shape[1]
    if parts < 1 or G % parts:
        raise ConfigError(f"a group of {G} has no {parts} equal parts: choose rollout.group_size as a multiple of them")
    return value_PG.unflatten(1, (parts, G // parts))


def standardize(reward: Tensor, valid: Tensor, eps: float) -> Tensor:
    """Rewards centered and divided by their sample std over the last axis: (..., G), bool (..., G) -> (..., G)."""
    deviation = centered(reward, valid)
    return divided(deviation, spread(deviation, valid, dim=(-1,), correction=1) + eps)


SCALES: Registry[Callable[..., Tensor]] = Registry(ADVANTAGES, COMBINING, arguments=("reward_PG", "valid_PG"))
"""All that ``advantage.scale`` may name."""
