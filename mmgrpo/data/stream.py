"""Assigns prompts to steps, as a pure function of the step, the prompt statistics and the seed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from mmgrpo.config import PromptsConfig
from mmgrpo.data.keys import prompt_keys
from mmgrpo.data.samplers import Pool, PromptSampler, permutation, shuffled
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.prompt_weights import apportioned
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Column, Memory, Outcomes, PartialRollouts
from mmgrpo.types import Prompt

logger = logging.getLogger(__name__)

FURTHER = -1  # seed key for the order of a step's extra prompts; epochs use keys from 0
SHARE_SEED = -2  # seed key for the shares of sources


def require_source(source: object, section: PromptsConfig | None) -> None:
    """Raises ConfigError if a strategy's source is not a label in ``prompts.sources``."""
    labels = [part.logged_name for part in section.sources] if section else []
    if source is not None and source not in labels:
        raise ConfigError(
            f"rollout.strategy.source: {source!r} is the label of none of prompts.sources, which are "
            f"{', '.join(labels) or 'not there'}; label the source that it takes"
        )


def require_numbers(prompts: Sequence[Prompt], column: str, reader: str) -> None:
    """Raises DataError for a row without a number in a column that ``reader`` needs."""
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt.columns.get(column), int | float):
            raise DataError(
                f"{reader} reads a number of each row, and row {number} has none in the column {column!r}; its columns "
                f"are {', '.join(sorted(prompt.columns)) or 'none'}"
            )


@final
@dataclass(frozen=True, slots=True)
class _Source:
    """The prompts of a source: their indices among all prompts, the pool, and the seed of its sampler."""

    indices: tuple[int, ...]
    pool: Pool
    seed: int


@final
class StepPrompts:
    """The prompts of a step by number: its sampled ones first, then extra ones, without repetition while possible.

    Attributes:
        num_replaced: number of sampled prompts that are unreadable and were replaced.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[str],
        sampled: Sequence[int],
        extra: Callable[[], Sequence[int]],
        is_readable: Callable[[int], bool] = lambda index: True,
    ) -> None:
        """Replaces the unreadable prompts of the step.

        Args:
            prompts: all prompts.
            keys: key of each prompt.
            sampled: indices of the step's sampled prompts.
            extra: returns the indices of extra prompts, in order.
            is_readable: whether the prompt at an index is readable.

        Raises:
            DataError: too few prompts are readable.
        """
        self._prompts = prompts
        self._keys = keys
        self._is_readable = is_readable
        self._rest = self._readable(extra)
        self._extra: list[int] = []
        readable = [index if is_readable(index) else None for index in sampled]
        filled = [next(self._rest, None) if index is None else index for index in readable]
        self._sampled = [index for index in filled if index is not None]
        self.num_replaced = sum(index is None for index in readable)
        if len(self._sampled) < len(sampled):
            raise DataError("a step cannot be filled: too few prompts are left that can be used")

    def prompt(self, number: int) -> Prompt:
        """Returns a prompt by its number from 0."""
        return self._prompts[self._index(number)]

    def key(self, number: int) -> str:
        """Returns the key of a prompt by its number from 0."""
        return self._keys[self._index(number)]

    def _index(self, number: int) -> int:
        if number < len(self._sampled):
            return self._sampled[number]
        extra = number - len(self._sampled)
        while len(self._extra) <= extra and (index := next(self._rest, None)) is not None:
            self._extra.append(index)
        return (self._extra or self._sampled)[extra % len(self._extra or self._sampled)]

    def _readable(self, extra: Callable[[], Sequence[int]]) -> Iterator[int]:
        yield from (index for index in extra() if self._is_readable(index))


@final
class PromptStream:
    """An endless, seeded, stateless order of prompts: a step's prompts depend on the step and the statistics only.

    Shuffled, an epoch has ceil(N / num_per_step) steps over one permutation; if N is no multiple, the last step wraps
    around to the start of the permutation, so that every prompt occurs at least once per epoch and never twice in a
    step. With fewer prompts than ``num_per_step`` they repeat within a step,
    as evenly as possible; each repetition is a separate group.

    Several sources share each step by weight; each is sampled separately by the same sampler.

    Attributes:
        keys: key of each prompt.
        memory: initial prompt statistics: empty, with the columns that are read.
        learners: updates of the sampler's statistics after a step.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        num_per_step: int,
        seed: int,
        sampler: PromptSampler | None = None,
        weights: Mapping[str, float] | None = None,
        columns: Sequence[Column] = (),
        skipping: Collection[str | None] = (),
        check: Callable[[Prompt], None] = lambda prompt: None,
    ) -> None:
        """Takes the prompts.

        Args:
            prompts: all prompts.
            num_per_step: number of prompts of a step.
            seed: seed of the run.
            sampler: chooses the prompts of a step; None: ``shuffled``.
            weights: weights of several sources, by the ``source`` label of their prompts; None: one source.
            columns: further statistics columns that others read.
            skipping: labels of the sources whose unreadable prompts are skipped.
            check: raises DataError for a prompt that the policy does not support; it counts as unreadable.

        Raises:
            DataError: there are no prompts, or a source has none.
        """
        if not prompts:
            raise DataError("a prompt stream needs at least one prompt")
        if num_per_step < 1:
            raise DataError(f"num_per_step must be at least 1, got {num_per_step}")
        self._prompts = prompts
        self._num_per_step = num_per_step
        self._seed = seed
        self._sampler = sampler or shuffled()
        self._weights = list(weights.values()) if weights else [1.0]
        self._sources = [
            _source(prompts, label, derive_seed(seed, SHARE_SEED, number) if number else seed)
            for number, label in enumerate(weights or [None])
        ]
        key_of = {
            index: key for source in self._sources for index, key in zip(source.indices, source.pool.keys, strict=True)
        }
        if len(key_of) < len(prompts):
            labels = sorted({str(prompt.source) for prompt in prompts} - set(weights or ()))
            raise DataError(f"prompts of {', '.join(labels)} belong to none of the sources {', '.join(weights or ())}")
        self.keys = tuple(key_of[index] for index in range(len(prompts)))
        self.memory = Memory().declared([*self._sampler.columns, *columns])
        self.learners: tuple[Callable[[Memory, Outcomes], Memory], ...] = (
            (self._sampler.learn,) if self._sampler.learn else ()
        )
        self._skipping = frozenset(skipping)
        self._check = check
        self._faults: dict[int, str | None] = {}
        self._starts: list[list[int]] = [[0] * len(self._sources)]

    def take(self, step: int, memory: Memory | None = None) -> list[tuple[int, Prompt]]:
        """Returns the dataset index and the prompt of each of a step's ``num_per_step`` groups; steps count from 0.

        Args:
            step: the step.
            memory: prompt statistics, for samplers that read them; None: the initial ones.

        Returns:
            Pairs, source by source.
        """
        return [(index, self._prompts[index]) for index in self._sampled_indices(step, memory or self.memory)]

    def at_step(self, step: int, memory: Memory | None = None) -> StepPrompts:
        """Returns the prompts of a step by number: of unfinished rows, ``num_per_step`` sampled ones, then extra ones.

        With partial rollouts the sampled prompts are the next ones of the order that no earlier step has begun.

        Args:
            step: the step.
            memory: prompt statistics and partial rollouts; None: the initial ones.

        Returns:
            The prompts.

        Raises:
            DataError: the prompt of an unfinished row is missing.
        """
        memory = memory or self.memory
        sampled = self._sampled_indices(step, memory)
        if memory.partial is not None:
            sampled = [*self._continued_indices(memory.partial), *self._next_indices(step, memory, memory.partial)]
        return StepPrompts(
            self._prompts, self.keys, sampled, lambda: self._extra_indices(step, memory, sampled), self._is_readable
        )

    @property
    def skips(self) -> bool:
        """Whether unreadable prompts of any source are skipped."""
        return bool(self._skipping)

    def _is_readable(self, index: int) -> bool:
        if self._prompts[index].source not in self._skipping:
            return True
        if index not in self._faults:
            from mmgrpo.data.unreadable_rows import prompt_fault  # loads torch, which lists and explain do without

            self._faults[index] = fault = prompt_fault(self._prompts[index], self._check)
            if fault is not None:
                num = sum(fault is not None for fault in self._faults.values())
                logger.warning("prompt %d is left out, number %d of those that cannot be read: %s", index, num, fault)
        return self._faults[index] is None

    def _sampled_indices(self, step: int, memory: Memory) -> list[int]:
        sampled: list[int] = []
        for source, num, start in zip(self._sources, self._shares(step), self._starts_at(step), strict=True):
            indices = self._sample(source, step, memory, num, start) if num else []
            sampled += [source.indices[index] for index in indices]
        return sampled

    def _continued_indices(self, partial: PartialRollouts) -> list[int]:
        """Returns the indices of the prompts of unfinished rows."""
        index_of = {key: index for index, key in enumerate(self.keys)}
        keys = [rows[0].key for rows in partial.groups]
        if missing := [key for key in keys if key not in index_of]:
            raise DataError(
                f"rows of earlier steps are unfinished, and the prompts no longer have theirs ({', '.join(missing)}): "
                "resume with the prompts of the run"
            )
        return [index_of[key] for key in keys]

    def _next_indices(self, step: int, memory: Memory, partial: PartialRollouts) -> list[int]:
        """Returns the next ``num_per_step`` indices after those that earlier steps began."""
        if self._sampler.columns:
            return self._sampled_indices(step, memory)
        full_steps, start = divmod(partial.num_prompts, self._num_per_step)
        sampled = self._sampled_indices(full_steps, memory) + self._sampled_indices(full_steps + 1, memory)
        return sampled[start : start + self._num_per_step]

    def _extra_indices(self, step: int, memory: Memory, sampled: Sequence[int]) -> list[int]:
        """Returns the indices of all other prompts in the sampler's order, the sources interleaved by weight."""
        sampled_set = set(sampled)
        ranked: list[tuple[float, int]] = []
        for source, weight in zip(self._sources, self._weights, strict=True):
            N = len(source.indices)
            if self._sampler.columns:
                order = self._sampler.draw(memory, step, source.pool, N, source.seed)
            else:
                order = list(permutation(derive_seed(source.seed, FURTHER, step), N))
            indices = [source.indices[index] for index in dict.fromkeys(order)]
            others = [index for index in indices if index not in sampled_set] or indices
            ranked += [((rank + 0.5) / weight, index) for rank, index in enumerate(others)]
        return [index for _, index in sorted(ranked, key=lambda pair: pair[0])]

    def _sample(self, source: _Source, step: int, memory: Memory, num: int, start: int) -> list[int]:
        if self._is_steady or self._sampler.columns:
            return self._sampler.draw(memory, step, source.pool, num, source.seed)
        numbers = range(start, start + num)  # separately: another step size would change the epochs
        return [index for n in numbers for index in self._sampler.draw(memory, n, source.pool, 1, source.seed)]

    @property
    def _is_steady(self) -> bool:
        """Whether every step takes equally many prompts of each source."""
        return all((self._num_per_step * weight / sum(self._weights)).is_integer() for weight in self._weights)

    def _shares(self, step: int) -> list[int]:
        return apportioned(self._weights, self._num_per_step, seed=derive_seed(self._seed, SHARE_SEED, step))

    def _starts_at(self, step: int) -> list[int]:
        """Returns the number of prompts of each source that the earlier steps took."""
        if self._is_steady:
            return [step * num for num in self._shares(step)]
        for earlier in range(len(self._starts) - 1, step):
            starts_shares = zip(self._starts[-1], self._shares(earlier), strict=True)
            self._starts.append([start + num for start, num in starts_shares])
        return self._starts[step]


def _source(prompts: Sequence[Prompt], label: str | None, seed: int) -> _Source:
    indices = tuple(index for index, prompt in enumerate(prompts) if label is None or prompt.source == label)
    if not indices:
        raise DataError(f"there are no prompts of the source '{label}'")
    source_prompts = [prompts[index] for index in indices]
    keys = prompt_keys(source_prompts)
    return _Source(indices, Pool(keys if label is None else _add_label(keys, label), source_prompts), seed)


def _add_label(keys: Iterable[str], label: str) -> tuple[str, ...]:
    return tuple(f"{label}/{key}" for key in keys)
