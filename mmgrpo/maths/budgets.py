"""Planners that give prompts groups of different sizes: more samples where they teach more.

Rewards are 0 for what is wrong and 1 for what is right; u and p are success rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace

from mmgrpo.maths.planners import Request, Setting


def rates_seen(setting: Setting) -> dict[int, float]:
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
    """Adds members one after another to the group of these prompts that gains most by one, none beyond ``most``.

    Args:
        sizes: of the groups, which grow.
        prompts: those that may.
        num: members to add.
        most: of a group.
        gain: (prompt, members) -> what one more is worth; falls with the members.

    Returns:
        How many found no place.
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
