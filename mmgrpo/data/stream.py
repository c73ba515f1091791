"""Deals prompts out as a pure function of the step, of the memory and of the seed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from mmgrpo.config import PromptsConfig
from mmgrpo.data.keys import prompt_keys
from mmgrpo.data.samplers import Pool, PromptSampler, in_order, permutation, shuffled
from mmgrpo.data.unreadable_rows import prompt_fault
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.prompt_weights import apportioned
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Column, Memory, Outcomes
from mmgrpo.types import Prompt

logger = logging.getLogger(__name__)

FURTHER = -1  # keys the order of a step's further prompts, apart from every epoch
SHARE_SEED = -2  # keeps the shares of sources apart from the orders of prompts


def require_source(source: object, section: PromptsConfig | None) -> None:
    """Raises ConfigError for a source of a strategy that is the label of none of ``prompts.sources``."""
    labels = [part.known_as for part in section.sources] if section else []
    if source is not None and source not in labels:
        raise ConfigError(
            f"rollout.strategy.source: {source!r} is the label of none of prompts.sources, which are "
            f"{', '.join(labels) or 'not there'}; label the source that it takes"
        )


def require_numbers(prompts: Sequence[Prompt], column: str, reader: str) -> None:
    """Raises DataError for a row without a number in a column, which the reader reads."""
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt.columns.get(column), int | float):
            raise DataError(
                f"{reader} reads a number of each row, and row {number} has none in the column {column!r}; its columns "
                f"are {', '.join(sorted(prompt.columns)) or 'none'}"
            )


@final
@dataclass(frozen=True, slots=True)
class _Source:
    """The prompts of a source: their places in the whole, and what draws them."""

    places: tuple[int, ...]
    pool: Pool
    seed: int


@final
class StepPrompts:
    """The prompts of a step by number: its own first, then further ones, none twice before all were.

    Attributes:
        num_replaced: how many of its own cannot be read, so that others took their place.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[str],
        own: Sequence[int],
        further: Callable[[], Sequence[int]],
        is_readable: Callable[[int], bool] = lambda place: True,
    ) -> None:
        """Chooses the step's own.

        Args:
            prompts: all there are.
            keys: what each is remembered by.
            own: the places of those that are the step's own.
            further: finds those of the further ones, in their order.
            is_readable: by its place, of a prompt in whose stead another is taken where it is not.

        Raises:
            DataError: too few can be read.
        """
        self._prompts = prompts
        self._keys = keys
        self._is_readable = is_readable
        self._rest = self._readable(further)
        self._further: list[int] = []
        kept = [place if is_readable(place) else None for place in own]
        filled = [next(self._rest, None) if place is None else place for place in kept]
        self._own = [place for place in filled if place is not None]
        self.num_replaced = sum(place is None for place in kept)
        if len(self._own) < len(own):
            raise DataError("a step cannot be filled: too few prompts are left that can be used")

    def prompt(self, number: int) -> Prompt:
        """The prompt of a number from 0."""
        return self._prompts[self._index(number)]

    def key(self, number: int) -> str:
        """What it is remembered by."""
        return self._keys[self._index(number)]

    def _index(self, number: int) -> int:
        if number < len(self._own):
            return self._own[number]
        wanted = number - len(self._own)
        while len(self._further) <= wanted and (found := next(self._rest, None)) is not None:
            self._further.append(found)
        return (self._further or self._own)[wanted % len(self._further or self._own)]

    def _readable(self, further: Callable[[], Sequence[int]]) -> Iterator[int]:
        yield from (place for place in further() if self._is_readable(place))


@final
class PromptStream:
    """An endless, seeded order of prompts that needs no state: the prompts of a step follow from step and memory.

    Shuffled, an epoch is ceil(N / num_per_step) steps over its own permutation; where N is not a multiple, its last
    step is filled up from the start of the same permutation, so that every prompt comes at least once per epoch and
    never twice in a step. Unshuffled, the prompts follow each other round and round. With fewer prompts than
    ``num_per_step`` they repeat within a step, as evenly as they can; each repetition is then a group of its own.

    Several sources share each step by weight and are drawn from one by one, each by the same sampler.

    Attributes:
        keys: of each prompt, what it is remembered by.
        memory: with which a run begins: empty, with the columns that are read.
        learners: what the sampler makes of a step in its own state.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        num_per_step: int,
        seed: int,
        shuffle: bool = True,
        sampler: PromptSampler | None = None,
        weights: Mapping[str, float] | None = None,
        columns: Sequence[Column] = (),
        skipping: Collection[str | None] = (),
        check: Callable[[Prompt], None] = lambda prompt: None,
    ) -> None:
        """Takes the prompts.

        Args:
            prompts: all of them.
            num_per_step: how many a step takes.
            seed: of the run.
            shuffle: False: in the order they have, if no sampler is given.
            sampler: which prompts a step takes; None: as ``shuffle`` says.
            weights: of several sources, by the label that their prompts have as ``source``; None: all are of one.
            columns: of the memory, that others read beside the sampler.
            skipping: the sources, by the label of their prompts, whose unreadable prompts are left out.
            check: raises DataError for a prompt that the policy cannot take, which is then unreadable too.

        Raises:
            DataError: there are no prompts, or none of one of the sources.
        """
        if not prompts:
            raise DataError("a prompt stream needs at least one prompt")
        if num_per_step < 1:
            raise DataError(f"num_per_step must be at least 1, got {num_per_step}")
        self._prompts = prompts
        self._num_per_step = num_per_step
        self._seed = seed
        self._sampler = sampler or (shuffled() if shuffle else in_order())
        self._weights = list(weights.values()) if weights else [1.0]
        self._sources = [
            _source(prompts, label, derive_seed(seed, SHARE_SEED, number) if number else seed)
            for number, label in enumerate(weights or [None])
        ]
        key_of = {place: key for one in self._sources for place, key in zip(one.places, one.pool.keys, strict=True)}
        if len(key_of) < len(prompts):
            found = sorted({str(prompt.source) for prompt in prompts} - set(weights or ()))
            raise DataError(f"prompts of {', '.join(found)} belong to none of the sources {', '.join(weights or ())}")
        self.keys = tuple(key_of[place] for place in range(len(prompts)))
        self.memory = Memory().declared([*self._sampler.columns, *columns])
        self.learners: tuple[Callable[[Memory, Outcomes], Memory], ...] = (
            (self._sampler.learn,) if self._sampler.learn else ()
        )
        self._skipping = frozenset(skipping)
        self._check = check
        self._faults: dict[int, str | None] = {}
        self._begun: list[list[int]] = [[0] * len(self._sources)]

    def take(self, step: int, memory: Memory | None = None) -> list[tuple[int, Prompt]]:
        """The dataset index and the prompt of each group of a step, ``num_per_step`` of them; steps count from 0.

        Args:
            step: the step.
            memory: what is remembered of the prompts, for samplers that read it; None: nothing.

        Returns:
            Pairs, source by source.
        """
        return [(index, self._prompts[index]) for index in self._own(step, memory or self.memory)]

    def at_step(self, step: int, memory: Memory | None = None) -> StepPrompts:
        """The prompts of a step by their numbers: ``num_per_step`` of its own, then further ones."""
        memory = memory or self.memory
        own = self._own(step, memory)
        return StepPrompts(self._prompts, self.keys, own, lambda: self._further(step, memory, own), self._is_readable)

    @property
    def skips(self) -> bool:
        """Whether any prompts that cannot be read are left out."""
        return bool(self._skipping)

    def _is_readable(self, place: int) -> bool:
        if self._prompts[place].source not in self._skipping:
            return True
        if place not in self._faults:
            self._faults[place] = fault = prompt_fault(self._prompts[place], self._check)
            if fault is not None:
                num = sum(one is not None for one in self._faults.values())
                logger.warning("prompt %d is left out, number %d of those that cannot be read: %s", place, num, fault)
        return self._faults[place] is None

    def _own(self, step: int, memory: Memory) -> list[int]:
        chosen: list[int] = []
        for source, num, num_begun in zip(self._sources, self._shares(step), self._begun_at(step), strict=True):
            places = self._drawn(source, step, memory, num, num_begun) if num else []
            chosen += [source.places[place] for place in places]
        return chosen

    def _further(self, step: int, memory: Memory, own: Sequence[int]) -> list[int]:
        """Every prompt that is not the step's own, as the sampler would go on, the sources side by side by weight."""
        taken = set(own)
        ranked: list[tuple[float, int]] = []
        for source, weight in zip(self._sources, self._weights, strict=True):
            N = len(source.places)
            if self._sampler.columns:
                order = self._sampler.draw(memory, step, source.pool, N, source.seed)
            else:
                order = list(permutation(derive_seed(source.seed, FURTHER, step), N))
            places = [source.places[place] for place in dict.fromkeys(order)]
            others = [place for place in places if place not in taken] or places
            ranked += [((rank + 0.5) / weight, place) for rank, place in enumerate(others)]
        return [place for _, place in sorted(ranked, key=lambda one: one[0])]

    def _drawn(self, source: _Source, step: int, memory: Memory, num: int, num_begun: int) -> list[int]:
        if self._is_steady or self._sampler.columns:
            return self._sampler.draw(memory, step, source.pool, num, source.seed)
        walked = range(num_begun, num_begun + num)  # one by one: steps of another size would begin other epochs
        return [place for one in walked for place in self._sampler.draw(memory, one, source.pool, 1, source.seed)]

    @property
    def _is_steady(self) -> bool:
        """Whether every step takes as many of each source."""
        return all((self._num_per_step * weight / sum(self._weights)).is_integer() for weight in self._weights)

    def _shares(self, step: int) -> list[int]:
        return apportioned(self._weights, self._num_per_step, seed=derive_seed(self._seed, SHARE_SEED, step))

    def _begun_at(self, step: int) -> list[int]:
        """How many prompts of each source the steps before took."""
        if self._is_steady:
            return [step * num for num in self._shares(step)]
        for earlier in range(len(self._begun) - 1, step):
            taken = zip(self._begun[-1], self._shares(earlier), strict=True)
            self._begun.append([before + num for before, num in taken])
        return self._begun[step]


def _source(prompts: Sequence[Prompt], label: str | None, seed: int) -> _Source:
    places = tuple(place for place, prompt in enumerate(prompts) if label is None or prompt.source == label)
    if not places:
        raise DataError(f"there are no prompts of the source '{label}'")
    chosen = [prompts[place] for place in places]
    keys = prompt_keys(chosen)
    return _Source(places, Pool(keys if label is None else _labelled(keys, label), chosen), seed)


def _labelled(keys: Iterable[str], label: str) -> tuple[str, ...]:
    return tuple(f"{label}/{key}" for key in keys)
