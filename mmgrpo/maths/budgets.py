"""Planners that give prompts groups of different sizes: more samples where they teach more.

Rewards are 0 for what is wrong and 1 for what is right; u and p are success rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heapreplace

from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.planners import Planner, Request, Round, Setting, ask_then


def more_where_hard(*, most: int, weight: str = "equal", standardised: bool = False) -> Planner:
    """Further members for prompts that fewer than half of the first members solve, in a second round.

    With S(u) the mean |A| of a member, 2 u (1 - u), or 2 sqrt(u (1 - u)) where advantages are ``standardised``, the
    sum of |A| over the group becomes N S(1/2), as it is where half is right (``equal``), or 2 (1 - u) N S(1/2)
    (``hardness``): ceil of what is missing over S(u) more members, of at most ``most`` in all. u is the rate of the
    N first members; none right counts as half a right one, and from 1/2 on there are no more.

    Units: members a group.   Raises: ConfigError for another weight, or fewer than 2 members.
    Source: DARS, arXiv:2508.13755, and its code (yangzhch6/DARS, ``ray_dars_trainer.py``, ``schedule_ET`` and
        ``schedule_HW``).
    """
    if weight not in ("equal", "hardness") or most < 2:
        raise ConfigError(f"more_where_hard needs weight: equal or hardness, and most >= 2, got {weight!r}, {most}")
    further = partial(_more, most=most, hardness=weight == "hardness", standardised=standardised)
    return Planner(ask=partial(ask_then, further=further), looks_back=True)


def _more(first: Round, setting: Setting, *, most: int, hardness: bool, standardised: bool) -> Sequence[Request]:
    size, rewards = setting.group_size, first.rewards()
    rates = {prompt: sum(of.values()) / len(of) for prompt, of in sorted(rewards.items())}
    more = {prompt: further_members(rate, size, most, hardness, standardised) for prompt, rate in rates.items()}
    return tuple(
        Request(prompt=prompt, members=tuple(range(size, size + num))) for prompt, num in more.items() if num > 0
    )


def further_members(rate: float, size: int, most: int, hardness: bool = False, standardised: bool = False) -> int:
    """How many members ``more_where_hard`` adds to a group of ``size`` of which a share is right.

    Source: DARS's code, ``schedule_ET`` and ``schedule_HW``.
    """
    rate = 0.5 / size if rate <= 1e-6 else rate
    if rate >= 0.5:
        return 0
    variance = rate * (1 - rate)
    spread, highest = (2 * math.sqrt(variance), 1.0) if standardised else (2 * variance, 0.5)
    wanted = (2 * (1 - rate) if hardness else 1.0) * highest * size
    return min(math.ceil((wanted - size * spread) / spread), most - size)


def by_learning_value(*, least: int = 2, most: int = 128, confidence: float = 0.9) -> Planner:
    """The step's samples shared out by what they are worth: group sizes of the largest total value, of the same sum.

    value(n, p) = (1 - p^n - (1 - p)^n) p (1 - p)^2: the chance that n samples are not all alike, times what a prompt
    of rate p gains. p is the rate at the prompt's last visit; a prompt never seen gets the group size, every other
    ``least`` to ``most`` members. The value's gains fall with n, so taking the largest gain each time is exact. Where
    the prompts of 0 < p < 1 need fewer samples than there are, ln(1 - confidence) / ln max(p, 1 - p) each, those
    left go to prompts of rate 0, or else to those of rate 1, evenly.

    Units: members a group; confidence is dimensionless.   Raises: ConfigError unless 1 <= least <= most and
        0 < confidence < 1.
    Source: Knapsack RL, arXiv:2509.25849, and the solver that goes with it (``sampling_budget_by_knapsack``).
        Deviation: there, the value of the least members counts only for prompts that get more than those.
    """
    if not 1 <= least <= most or not 0 < confidence < 1:
        raise ConfigError(
            f"by_learning_value needs 1 <= least <= most and a confidence within 0 and 1, got {least}, {most}, "
            f"{confidence}"
        )
    return Planner(
        ask=partial(_ask_by_value, least=least, most=most, confidence=confidence),
        memory=(column_of("last_rate"), column_of("visits")),
    )


def _ask_by_value(
    rounds: Sequence[Round], setting: Setting, *, least: int, most: int, confidence: float
) -> Sequence[Request]:
    if rounds:
        return ()
    seen = rates_seen(setting)
    sizes = dict.fromkeys(range(setting.num_prompts), setting.group_size)
    sizes |= shared_out(seen, setting.group_size * len(seen), least=least, most=most, confidence=confidence)
    return sized(sizes)


def rates_seen(setting: Setting) -> dict[int, float]:
    """The rate at its last visit of each of the step's prompts that had one; reads ``last_rate`` and ``visits``."""
    keys = [setting.key_of(prompt) for prompt in range(setting.num_prompts)]
    rates, visits = (setting.memory.read(name, keys).tolist() for name in ("last_rate", "visits"))
    return {prompt: rates[prompt] for prompt in range(setting.num_prompts) if visits[prompt] > 0}


def sized(sizes: Mapping[int, int]) -> tuple[Request, ...]:
    """A request for each group of this many members."""
    return tuple(Request(prompt=prompt, members=tuple(range(size))) for prompt, size in sizes.items() if size > 0)


def shared_out(
    rates: Mapping[int, float], total: int, *, least: int, most: int, confidence: float = 0.9
) -> dict[int, int]:
    """Group sizes of prompts by their rates, as ``by_learning_value`` says: of the sum ``total``, if that is enough.

    Source: Knapsack RL, arXiv:2509.25849.
    """
    sizes = dict.fromkeys(rates, least)
    left = max(total - least * len(rates), 0)
    mixed = [prompt for prompt, rate in rates.items() if 0 < rate < 1]
    alike = [prompt for prompt, rate in rates.items() if rate <= 0] or [p for p, rate in rates.items() if rate >= 1]
    needed = sum(int(min(most, _samples_needed(rates[prompt], confidence))) for prompt in mixed)
    spare = max(left - needed, 0) if alike else 0
    for place in range(spare):
        sizes[alike[place % len(alike)]] += 1
    largest_gains(sizes, mixed, left - spare, most=most, gain=lambda prompt, num: _gain(num, rates[prompt]))
    return sizes


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


def learning_value(num: int, rate: float) -> float:
    """What ``num`` samples of a prompt are worth: the chance that they are not all alike, times the gain of its rate.

    (1 - p^n - (1 - p)^n) p (1 - p)^2

    Units: dimensionless.   Source: Knapsack RL, arXiv:2509.25849.
    """
    return (1 - rate**num - (1 - rate) ** num) * rate * (1 - rate) ** 2


def _gain(num: int, rate: float) -> float:
    return learning_value(num + 1, rate) - learning_value(num, rate)


def _samples_needed(rate: float, confidence: float) -> float:
    return math.log(1 - confidence) / math.log(max(rate, 1 - rate))
