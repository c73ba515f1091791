"""Which of a prompt's remembered rows are read again.

Rows come oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import inf
from types import MappingProxyType

from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory, ReplayRow


def recent(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The newest rows, newest first. Source: RePO, arXiv:2506.09340, its recency-based strategy."""
    return list(reversed(rows))[:num]


def rewarded(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The rows of the highest rewards; among equals the newer. Source: RePO, arXiv:2506.09340, reward-oriented."""
    return sorted(recent(rows, len(rows)), key=lambda row: -row.reward)[:num]


def varied(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The rows with the most spread rewards: some of the lowest and the rest of the highest.

    Of all subsets of one size the one of the largest variance is a number of the smallest and a number of the largest.

    Source: RePO, arXiv:2506.09340, variance-driven.
    """
    ordered = sorted(recent(rows, len(rows)), key=lambda row: -row.reward)
    num = min(num, len(ordered))
    if num == 0:
        return []
    ways = [[*ordered[:high], *ordered[len(ordered) - (num - high) :]] for high in range(num, -1, -1)]
    return max(ways, key=_spread)


def everything(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """All of the prompt's rows, newest first, for any number. Source: RePO, arXiv:2506.09340, full-scope."""
    return list(reversed(rows))


def surest(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The rows with the highest likelihood under their behavior policy, by the mean log-probability of their tokens.

    Source: ExGRPO, arXiv:2510.02245, and its code (ElliottYan/LUFFY, ``experience_helpers.py``), which takes the lowest
    mean entropy under the current policy. Rows without log-probabilities come last.
    """
    return sorted(recent(rows, len(rows)), key=_surprise)[:num]


def _surprise(row: ReplayRow) -> float:
    logprob_T = row.old_logprob_T
    return inf if logprob_T is None or not len(logprob_T) else -float(logprob_T.mean())


REPLAY_ORDERS: Mapping[str, Callable[[Sequence[ReplayRow], int], list[ReplayRow]]] = MappingProxyType(
    {"recency": recent, "reward": rewarded, "variance": varied, "full": everything, "surest": surest}
)
"""Which of a prompt's rows are read again, by name; rows come oldest first."""


def replayed(
    memory: Memory, key: str, num: int, strategy: str, *, least: int = 1, at_least: float | None = None
) -> list[ReplayRow]:
    """Rows of a prompt to replay, with a reward of ``at_least``; none while fewer than ``least`` are stored.

    Raises ConfigError for an unknown strategy.
    """
    if strategy not in REPLAY_ORDERS:
        raise ConfigError(f"unknown replay strategy {strategy!r}; choose from {', '.join(REPLAY_ORDERS)}")
    rows = [row for row in memory.replay.get(key, ()) if at_least is None or row.reward >= at_least]
    return REPLAY_ORDERS[strategy](rows, num) if len(rows) >= least else []


def _spread(rows: Sequence[ReplayRow]) -> float:
    return sum((first.reward - second.reward) ** 2 for first, second in combinations(rows, 2))
