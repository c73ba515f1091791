"""Advantages of groups in parts, whose members were shown different prompts, and of several groups taken as one.

The members of a group come in order: the first part, then the next, as the planner ``in_contexts`` asks for them. What
a group is, and what ``valid_PG`` says, is as in ``mmgrpo.maths.advantages``, whose registry holds these functions too.

Axes: P prompts, G group size, K parts of a group, M members of a part, N bundles of prompts, S prompts of a bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.centring import centred, checked_rewards, divided, spread

if TYPE_CHECKING:
    from torch import Tensor


def part_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, eps: float = 1e-6) -> Tensor:
    """Reward standardised within its part of the group alone.

    A = (r - mean_M r) / (std_M r + eps), M the members of the sample's part.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: any reward scale -> dimensionless; eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group.
    Source: each expert's samples compared among themselves: MEML-GRPO, arXiv:2508.09670; each paraphrase's: PS-GRPO,
        arXiv:2510.04392.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    return standardise(split_groups(reward_PG, parts), split_groups(valid_PG, parts), eps).flatten(1)


def split_groups(value_PG: Tensor, parts: int) -> Tensor:
    """(P, K, M), the members of each part side by side."""
    G = value_PG.shape[1]
    if parts < 1 or G % parts:
        raise ConfigError(f"a group of {G} has no {parts} equal parts: choose rollout.group_size as a multiple of them")
    return value_PG.unflatten(1, (parts, G // parts))


def standardise(reward: Tensor, valid: Tensor, eps: float) -> Tensor:
    """Rewards over the last axis, centred and divided by their spread."""
    deviation = centred(reward, valid)
    return divided(deviation, spread(deviation, valid, dim=(-1,), correction=1) + eps)
