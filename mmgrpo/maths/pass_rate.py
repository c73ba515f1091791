"""Advantages of right or wrong answers by the pass rate of the group.

A sample is right where its reward is at least ``at_least``. Groups and ``valid_PG`` are those of
``mmgrpo.maths.advantages``; its registry includes these functions.

Axes: P prompts, G group size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import checked_rewards
from mmgrpo.maths.strategies import Request, Setting
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("verdict")
def verdict_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, right: float = 0.1, wrong: float = -1.0, at_least: float = 0.5
) -> Tensor:
    """One number for right answers and one for wrong answers, independent of the rest of the group.

    A = right where r >= at_least, else wrong. right 0.1 and wrong -1 is W-REINFORCE, 0 and -1 trains on wrong answers
    only (NSR), 1 and 0 on right ones only (PSR, RAFT).

    Shapes: (P, G) -> (P, G), G >= 2.   Units: right and wrong are advantages; at_least in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: arXiv:2506.01347, and RLVR-Decomposed's verl/trainer/ppo/core_algos.py, compute_psr_nsr_outcome_advantage;
    RAFT, arXiv:2304.06767.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    right_PG = torch.full_like(reward_PG, right)
    return right_PG.where(reward_PG >= at_least, wrong).where(valid_PG, 0.0)


def right_share(reward_PG: Tensor, valid_PG: Tensor, at_least: float) -> Tensor:
    """Share of the valid rewards of a group that are at least ``at_least``, as (P, 1)."""
    right_PG = (reward_PG >= at_least) & valid_PG
    return right_PG.sum(1, keepdim=True).to(reward_PG) / valid_PG.sum(1, keepdim=True).clamp(min=1)


def require_within(reward_PG: Tensor, valid_PG: Tensor, low: float, high: float) -> None:
    """Raises ShapeError for a valid reward outside [low, high]."""
    outside_PG = valid_PG & ~((reward_PG >= low) & (reward_PG <= high))
    if outside_PG.any():
        raise ShapeError(
            f"these advantages are of rewards from {low:g} to {high:g}, got {reward_PG[outside_PG][0]:g}; weights, a "
            "clip or a divergence taken off the reward may lead out of them"
        )


def pass_rates(setting: Setting) -> dict[int, float]:
    """The rate at its last visit of each of the step's prompts that had one; reads ``last_rate`` and ``visits``."""
    keys = [setting.key_of(prompt) for prompt in range(setting.num_prompts)]
    rates, visits = (setting.memory.read(name, keys).tolist() for name in ("last_rate", "visits"))
    return {prompt: rates[prompt] for prompt in range(setting.num_prompts) if visits[prompt] > 0}


def sized(sizes: Mapping[int, int]) -> tuple[Request, ...]:
    """A request for each group of this many members."""
    return tuple(Request(prompt=prompt, members=tuple(range(size))) for prompt, size in sizes.items() if size > 0)


def largest_gains(
    sizes: dict[int, int], prompts: Iterable[int], num: int, *, most: int, gain: Callable[[int, int], float]
) -> int:
    """Adds members one by one to the group that gains most, at most ``most`` per group.

    Args:
        sizes: sizes of the groups, increased in place.
        prompts: the groups that may grow.
        num: members to add.
        most: of a group.
        gain: (prompt, members) -> the value of one more member; decreases with the members.

    Returns:
        The number of members that no group took.
    """
    gains = [(-gain(prompt, sizes[prompt]), prompt) for prompt in prompts if sizes[prompt] < most]
    heapify(gains)
    for added in range(num):
        if not gains or sizes[gains[0][1]] >= most:
            return num - added
        prompt = gains[0][1]
        sizes[prompt] += 1
        heapreplace(gains, (-gain(prompt, sizes[prompt]) if sizes[prompt] < most else math.inf, prompt))
    return 0
