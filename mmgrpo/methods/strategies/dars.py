"""DARS-Breadth, arXiv:2508.13755.

Prompts with a low success rate get further samples in a second round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, second_round


def _check_more_where_hard(weight: str, most: int) -> None:
    if weight not in ("equal", "hardness") or most < 2:
        raise ConfigError(f"more_where_hard needs weight: equal or hardness, and most >= 2, got {weight!r}, {most}")


@STRATEGIES.register
@second_round(check=_check_more_where_hard)
def more_where_hard(
    first: Round, setting: Setting, *, most: int, weight: str = "equal", standardized: bool = False
) -> Sequence[Request]:
    """Further members for prompts that fewer than half of the first members solve, in a second round.

    With S(u) the mean |A| of a member, 2 u (1 - u), or 2 sqrt(u (1 - u)) where advantages are ``standardized``, the
    sum of |A| over the group becomes N S(1/2), as it is where half is right (``equal``), or 2 (1 - u) N S(1/2)
    (``hardness``): ceil of the difference over S(u) more members, of at most ``most`` in all. u is the rate of the
    N first members; none right counts as half a right one, and from 1/2 on there are no more.

    Units: members a group.   Raises: ConfigError for another weight, or fewer than 2 members.
    Source: DARS, arXiv:2508.13755, and its code (yangzhch6/DARS, ``ray_dars_trainer.py``, ``schedule_ET`` and
        ``schedule_HW``).
    """
    size, rewards = setting.group_size, first.rewards()
    rates = {prompt: sum(of.values()) / len(of) for prompt, of in sorted(rewards.items())}
    more = {
        prompt: further_members(rate, size, most, weight == "hardness", standardized) for prompt, rate in rates.items()
    }
    return tuple(
        Request(prompt=prompt, members=tuple(range(size, size + num))) for prompt, num in more.items() if num > 0
    )


def further_members(rate: float, size: int, most: int, hardness: bool = False, standardized: bool = False) -> int:
    """How many members ``more_where_hard`` adds to a group of ``size`` of which a share is right.

    Source: DARS's code, ``schedule_ET`` and ``schedule_HW``.
    """
    rate = 0.5 / size if rate <= 1e-6 else rate
    if rate >= 0.5:
        return 0
    variance = rate * (1 - rate)
    spread, highest = (2 * math.sqrt(variance), 1.0) if standardized else (2 * variance, 0.5)
    target = (2 * (1 - rate) if hardness else 1.0) * highest * size
    return min(math.ceil((target - size * spread) / spread), most - size)
