"""What a step leaves in the memory, and which of the rows it holds are read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import torch
from torch import Tensor

from mmgrpo.config.registry import suggestion
from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.memory import Memory, Outcomes, ReplayRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the whole job saw at a step, the same on every process.

    Attributes:
        keys: of the prompt of each of the job's B rows, in one fixed order.
        reward_B: the rewards as one, as they are compared; of rows without any it is not looked at.
        valid_B: bool, whether any reward applied.
        step: counted from 0.
    """

    keys: Sequence[str]
    reward_B: Tensor
    valid_B: Tensor
    step: int

    def __post_init__(self) -> None:
        if not len(self.keys) == len(self.reward_B) == len(self.valid_B):
            raise ShapeError(
                f"a key, a reward and whether it is one for each row, got {len(self.keys)}, {len(self.reward_B)}, "
                f"{len(self.valid_B)}"
            )


def facts_of_step(
    group_N: Tensor, reward_N: Tensor, valid_N: Tensor, key_of: Callable[[int], str], *, step: int
) -> Facts:
    """What the job saw, in the order of its groups, whichever process drew which.

    Args:
        group_N: number of each row's prompt in the step, of the whole job.
        reward_N: its rewards as one.
        valid_N: bool, whether any applied.
        key_of: the key of a prompt by its number.
        step: counted from 0.

    Returns:
        The facts.
    """
    order = group_N.argsort(stable=True)
    keys = [key_of(group) for group in group_N[order].tolist()]
    return Facts(keys=keys, reward_B=reward_N[order], valid_B=valid_N[order], step=step)


Learner = Callable[[Memory, Outcomes], Memory]
"""What a sampler or an estimator makes of a step in its own state, after the columns."""


def remember(memory: Memory, facts: Facts, learners: Sequence[Learner] = ()) -> Memory:
    """The memory after a step: each column by its rule, then what samplers learn of it.

    Args:
        memory: before the step.
        facts: of the whole job.
        learners: of samplers and estimators, in a fixed order.

    Returns:
        The memory; itself, if no column has a rule and nobody learns.
    """
    ruled = [column for column in memory.columns.values() if column.rule is not None]
    if not ruled and not learners:
        return memory
    outcomes = outcomes_of(facts)
    for column in ruled:
        assert column.rule is not None
        number_K = column.rule(memory.read(column.name, outcomes.keys), outcomes)
        memory = memory.write(column.name, outcomes.keys, number_K)
    for learner in learners:
        memory = learner(memory, outcomes)
    return memory


def remembered(memory: Memory, group_N: Tensor, key_of: Callable[[int], str], column: str) -> Tensor:
    """(N,) a column's number of the prompt of each of the job's rows.

    Args:
        memory: before the step.
        group_N: number of each row's prompt in the step.
        key_of: the key of a prompt by its number.
        column: a declared one.

    Returns:
        The numbers.
    """
    groups, place_N = group_N.unique(return_inverse=True)
    return memory.read(column, [key_of(group) for group in groups.tolist()])[place_N]


def outcomes_of(facts: Facts) -> Outcomes:
    """The step's rewards per prompt, over the rows that have one; groups of one prompt count as one."""
    keys = tuple(dict.fromkeys(facts.keys))
    place = {key: number for number, key in enumerate(keys)}
    index_B = torch.tensor([place[key] for key in facts.keys], dtype=torch.long)
    reward_B = facts.reward_B.double().where(facts.valid_B, 0.0)
    nothing_K = torch.zeros(len(keys), dtype=torch.float64)
    return Outcomes(
        keys=keys,
        num_K=torch.zeros(len(keys), dtype=torch.int64).index_add(0, index_B, facts.valid_B.long()),
        reward_sum_K=nothing_K.index_add(0, index_B, reward_B),
        reward_square_sum_K=nothing_K.index_add(0, index_B, reward_B**2),
        step=facts.step,
    )


def recent(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The newest rows, newest first. Source: RePO, arXiv:2506.09340, its recency-based strategy."""
    return list(reversed(rows))[:num]


def rewarded(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The rows of the highest rewards; among equals the newer. Source: RePO, arXiv:2506.09340, reward-oriented."""
    return sorted(recent(rows, len(rows)), key=lambda row: -row.reward)[:num]


def varied(rows: Sequence[ReplayRow], num: int) -> list[ReplayRow]:
    """The rows whose rewards spread the most: some of the lowest and the rest of the highest.

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
    """All of the prompt's rows, newest first, whatever the number. Source: RePO, arXiv:2506.09340, full-scope."""
    return list(reversed(rows))


STRATEGIES: Mapping[str, Callable[[Sequence[ReplayRow], int], list[ReplayRow]]] = MappingProxyType(
    {"recency": recent, "reward": rewarded, "variance": varied, "full": everything}
)
"""Which of a prompt's rows are read again, by name; rows come oldest first."""


def replayed(memory: Memory, key: str, num: int, strategy: str) -> list[ReplayRow]:
    """Rows of a prompt to read again. Raises ConfigError for an unknown strategy."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown replay strategy {strategy!r}{suggestion(strategy, STRATEGIES)}")
    return STRATEGIES[strategy](memory.replay.get(key, ()), num)


def _spread(rows: Sequence[ReplayRow]) -> float:
    return sum((one.reward - other.reward) ** 2 for one, other in combinations(rows, 2))
