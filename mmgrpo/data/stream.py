"""The order of prompts over a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import final

import torch

from mmgrpo.errors import DataError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Prompt

FURTHER = -1  # keys the order of a step's further prompts, apart from every epoch


@final
class PromptStream:
    """An endless, seeded order of prompts that needs no state: the prompts of a step follow from the step alone.

    Shuffled, an epoch is ceil(N / num_per_step) steps over its own permutation; where N is not a multiple, its last
    step is filled up from the start of the same permutation, so that every prompt comes at least once per epoch and
    never twice in a step. Unshuffled, the prompts follow each other round and round. With fewer prompts than
    ``num_per_step`` they repeat within a step, as evenly as they can; each repetition is then a group of its own.
    """

    def __init__(self, prompts: Sequence[Prompt], *, num_per_step: int, seed: int, shuffle: bool = True) -> None:
        if not prompts:
            raise DataError("a prompt stream needs at least one prompt")
        if num_per_step < 1:
            raise DataError(f"num_per_step must be at least 1, got {num_per_step}")
        self._prompts = prompts
        self._num_per_step = num_per_step
        self._seed = seed
        self._shuffle = shuffle

    def take(self, step: int) -> list[tuple[int, Prompt]]:
        """The dataset index and the prompt of each group of a step, ``num_per_step`` of them; steps count from 0."""
        N = len(self._prompts)
        n = self._num_per_step
        if not self._shuffle:
            chosen = [(step * n + i) % N for i in range(n)]
        else:
            epoch, step_in_epoch = divmod(step, -(-N // n))
            order = _permutation(derive_seed(self._seed, epoch), N)
            chosen = [order[(step_in_epoch * n + i) % N] for i in range(n)]
        return [(index, self._prompts[index]) for index in chosen]

    def at(self, step: int, number: int) -> Prompt:
        """A prompt of a step by its number; from ``num_per_step`` on they are further ones, none twice before all were.

        Args:
            step: counted from 0.
            number: 0 or more.

        Returns:
            The prompt.
        """
        own = self.take(step)
        if number < len(own):
            return own[number][1]
        taken = {index for index, _ in own}
        order = _permutation(derive_seed(self._seed, FURTHER, step), len(self._prompts))
        others = [index for index in order if index not in taken] or order
        return self._prompts[others[(number - len(own)) % len(others)]]


@lru_cache(maxsize=4)
def _permutation(seed: int, size: int) -> tuple[int, ...]:
    return tuple(torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist())
