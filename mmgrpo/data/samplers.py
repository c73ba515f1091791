"""Prompt samplers: pure functions of the prompt statistics, the step and the seed that choose a step's prompts.

To add a sampler: a function of its settings that returns a ``PromptSampler``, and a line in ``SAMPLERS``.

Axes: N prompts of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.columns import COLUMNS, column_of
from mmgrpo.maths.prompt_weights import FORMULAS
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Column, Memory, Outcomes
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Prompt

SAMPLERS: Registry[Callable[..., PromptSampler]] = Registry(arguments=())
"""Prompt samplers by the name that ``prompts.sampler`` uses."""

DRAW = 1  # keeps a sampler's random numbers apart from the permutations


@dataclass(frozen=True, slots=True)
class Pool:
    """The prompts of a source.

    Attributes:
        keys: the key of each prompt.
        prompts: the prompts in source order.
    """

    keys: tuple[str, ...]
    prompts: Sequence[Prompt]

    def column(self, name: str) -> Tensor:
        """Returns the (N,) float64 numbers of a column. Raises DataError for a row without a number."""
        numbers = [prompt.columns.get(name) for prompt in self.prompts]
        for row, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise DataError(f"prompts, row {row}: column '{name}' must be a number to sort by, got {number!r:.60}")
        return torch.tensor(numbers, dtype=torch.float64)


class Draw(Protocol):
    """Chooses a step's prompts."""

    def __call__(self, memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        """Returns ``num`` indices into the pool, deterministic in the arguments; steps count from 0."""
        ...


@dataclass(frozen=True, slots=True)
class PromptSampler:
    """A prompt sampler.

    Attributes:
        draw: chooses the prompts of a step.
        columns: statistics columns that it reads.
        learn: updates its own statistics after a step; None: it has none.
    """

    draw: Draw
    columns: tuple[Column, ...] = ()
    learn: Callable[[Memory, Outcomes], Memory] | None = None


@SAMPLERS.register
def shuffled() -> PromptSampler:
    """A new permutation every epoch; each prompt occurs at least once per epoch."""
    return PromptSampler(_next_of_permutation)


@SAMPLERS.register
def in_order() -> PromptSampler:
    """The prompts in the order of the source, repeated."""
    return PromptSampler(lambda memory, step, pool, num, seed: [(step * num + i) % len(pool.keys) for i in range(num)])


@SAMPLERS.register
def weighted(
    *,
    formula: str = "variance",
    floor: float = 0.01,
    added: float = 0.0,
    unseen: float = 0.5,
    column: str | None = None,
) -> PromptSampler:
    """Samples without replacement, with probabilities by the success rate so far; see the formulas.

    w = max(formula(p), floor) + added; p is the mean reward of the prompt, clipped to [0, 1], and ``unseen`` before the
    first reward. With a ``column`` of the prompt statistics, such as ``value``, p is its value.

    Source: MMR1, arXiv:2509.21268; SPO, arXiv:2509.13232, and its code (verl, recipe/spo), which adds 0.05.
    """
    if formula not in FORMULAS:
        raise ConfigError(f"prompts.sampler: weighted has no formula {formula!r}; known are {', '.join(FORMULAS)}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        rate_N = _mean_reward(memory, pool, unseen) if column is None else memory.read(column, pool.keys).double()
        weight_N = FORMULAS[formula](rate_N.clamp(0, 1)).clamp(min=floor) + added
        return sample_by_weight(weight_N.log(), step, num, seed)

    read = (COLUMNS["num_samples"], COLUMNS["reward_sum"]) if column is None else (column_of(column),)
    return PromptSampler(draw, read)


def _mean_reward(memory: Memory, pool: Pool, unseen: float) -> Tensor:
    num_N = memory.read("num_samples", pool.keys)
    return (memory.read("reward_sum", pool.keys) / num_N.clamp(min=1)).where(num_N > 0, unseen)


@SAMPLERS.register
def drop_solved(*, times: int = 1, right: float = 0.98) -> PromptSampler:
    """Skips prompts whose samples were all correct in the last ``times`` visits, while other prompts remain.

    The others are ordered by the step in which they were last sampled, least recent first.

    Source: SRPO, arXiv:2504.14286, history resampling. Deviation: from the next step on, not from the next epoch.
    """

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        return longest_waiting(memory, step, pool, num, seed, memory.read("right_streak", pool.keys) < times)

    return PromptSampler(draw, (column_of("right_streak", {"right": right}), COLUMNS["last_step"]))


@SAMPLERS.register
def mixed(*, share: float, first: PromptSampler, second: PromptSampler) -> PromptSampler:
    """A share of each step by one sampler, the rest by another.

    ``first`` chooses ``share`` of a step's prompts, ``second`` the rest, without repetition while it has other prompts.

    Source: MMR1, arXiv:2509.21268: part by variance, the rest uniform.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"prompts.sampler: mixed needs 0 <= share <= 1, got {share}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        num_first = int(share * num + 0.5)
        first_indices = first.draw(memory, step, pool, num_first, seed) if num_first else []
        others = second.draw(memory, step, pool, num, seed)
        ordered = sorted(others, key=lambda index: index in first_indices)
        return [*first_indices, *ordered[: num - num_first]]

    learners = [sampler.learn for sampler in (first, second) if sampler.learn is not None]
    return PromptSampler(draw, (*first.columns, *second.columns), partial(_learn_all, learners) if learners else None)


def _learn_all(learners: Sequence[Callable[[Memory, Outcomes], Memory]], memory: Memory, outcomes: Outcomes) -> Memory:
    for learn in learners:
        memory = learn(memory, outcomes)
    return memory


def _next_of_permutation(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
    """Takes the next prompts of the epoch's permutation; an epoch has ceil(N / num) steps; the last wraps around."""
    N = len(pool.keys)
    epoch, step_in_epoch = divmod(step, -(-N // num))
    order = permutation(derive_seed(seed, epoch), N)
    return [order[(step_in_epoch * num + i) % N] for i in range(num)]


def longest_waiting(
    memory: Memory, step: int, pool: Pool, num: int, seed: int, first_N: Tensor, *, others: bool = True
) -> list[int]:
    """Returns the prompts of ``first_N``, least recently sampled first, ties in the epoch's order; then the others."""
    N = len(pool.keys)
    order = permutation(derive_seed(seed, step // -(-N // num)), N)
    last_N, is_first = memory.read("last_step", pool.keys).tolist(), first_N.tolist()
    ranked = sorted(order, key=lambda index: (not is_first[index], last_N[index]))
    ranked = ranked if others else ranked[: sum(is_first)]
    return [ranked[i % len(ranked)] for i in range(num)]


def sample_by_weight(log_weight_N: Tensor, step: int, num: int, seed: int) -> list[int]:
    """Samples indices by their weights without replacement; repeats only after all were sampled."""
    uniform_N = uniform(derive_seed(seed, DRAW, step), len(log_weight_N))
    return _first(log_weight_N - (-uniform_N.log()).log(), num)


def _first(score_N: Tensor, num: int) -> list[int]:
    """Returns the indices of the highest scores, highest first; wraps around if there are fewer."""
    ranked = score_N.argsort(descending=True, stable=True)[:num].tolist()
    return [ranked[i % len(ranked)] for i in range(num)]


def uniform(seed: int, size: int) -> Tensor:
    """(N,) float64 in (0, 1)."""
    uniform_N = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return uniform_N.clamp(min=torch.finfo(torch.float64).tiny)


@lru_cache(maxsize=8)
def permutation(seed: int, size: int) -> tuple[int, ...]:
    """Returns a permutation of the numbers below ``size`` that is a function of the seed."""
    return tuple(torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist())
