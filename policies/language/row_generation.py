"""Rows to generate, and the contract of what generates them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.errors import DataError

from ..completion import Completion
from ..engines.engine import CompletionSource
from ..sampling import SamplingDistribution
from ..token_buffer import TokenBuffer
from .encoding import EncodedPrompt


@dataclass(frozen=True, slots=True, eq=False)
class RowStart:
    """The beginning of rows.

    Attributes:
        prompt: the prompt.
        initial: the beginning of the answer; None if it is empty.
    """

    prompt: EncodedPrompt
    initial: Completion | None = None

    @property
    def num_initial(self) -> int:
        """Number of tokens of the beginning of the answer."""
        return 0 if self.initial is None else len(self.initial.token_T)

    def read(self, fill: int) -> EncodedPrompt:
        """Prompt and beginning of the answer as one prompt."""
        return self.prompt if self.initial is None else self.prompt.with_tokens(self.initial.token_T, fill)

    def followed_by(self, completion: Completion) -> Completion:
        """The beginning of the answer with the rest of it."""
        return completion if self.initial is None else Completion.concat([self.initial, completion])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationParams:
    """Sampling parameters of a rollout.

    Attributes:
        sampling: the sampling distribution.
        length: maximum number of tokens of an answer, including its beginning.
        window: maximum number of tokens of an answer after its beginning; None: up to ``length``.
        greedy: whether to take the likeliest token.
        numbers: statistics to store per token besides its log-probability.
        batch_size: rows that are decoded at a time.
        end_ids: tokens that end an answer.
        embedding_VD: the model's token embeddings, if a statistic needs them.
        source: has the completions of the rows; None: the model generates them.
        media_ids: placeholder tokens of images, videos and audio.
    """

    sampling: SamplingDistribution
    length: int
    greedy: bool
    numbers: tuple[str, ...]
    batch_size: int
    end_ids: Tensor
    embedding_VD: Tensor | None = None
    source: CompletionSource | None = None
    media_ids: tuple[int, ...] = ()
    window: int | None = None

    def is_partial(self, completion: Completion) -> bool:
        """Whether the window cut off an answer before its end and its length limit."""
        return self.window is not None and not completion.finished and len(completion.token_T) < self.length

    def buffer(self, limit_N: Tensor) -> TokenBuffer:
        """An empty buffer for rows of at most so many tokens; their random numbers are zeros."""
        return TokenBuffer(
            self.sampling,
            limit_N=limit_N,
            device=self.end_ids.device,
            uniform_NT=None if self.greedy else torch.zeros(len(limit_N), int(limit_N.max())),
            numbers=self.numbers,
            embedding_VD=self.embedding_VD,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRequest:
    """A row to generate.

    Attributes:
        row: its number.
        start: its beginning; rows with the same object share it.
        seed: seed of its random numbers.
    """

    row: int
    start: RowStart
    seed: int

    def limit(self, params: GenerationParams) -> int:
        """The maximum number of its tokens after the beginning.

        Raises: DataError if the beginning is as long as the limit.
        """
        if (num_initial := self.start.num_initial) >= params.length:
            raise DataError(
                f"the answer to {self.start.prompt.prompt.text!r:.60} begins with a prefix of {num_initial} "
                f"tokens, which leaves none of max_new_tokens={params.length} to generate; raise max_new_tokens"
            )
        remaining = params.length - num_initial
        return remaining if params.window is None else min(remaining, params.window)

    def uniform(self, params: GenerationParams) -> Tensor | None:
        """The random numbers of its tokens after the beginning; None if the likeliest tokens are taken.

        Decision t of a row uses the t-th random number of its seed, wherever the row starts.
        """
        if params.greedy:
            return None
        uniform_T = torch.rand(params.length, generator=torch.Generator().manual_seed(self.seed))
        return uniform_T[self.start.num_initial :][: self.limit(params)]


def shared_starts(requests: Sequence[RowRequest]) -> tuple[list[RowStart], list[int]]:
    """The beginnings of rows, each once, and the number of each row's beginning among them."""
    starts = list({id(request.start): request.start for request in requests}.values())
    number = {id(start): n for n, start in enumerate(starts)}
    return starts, [number[id(request.start)] for request in requests]


def split_at_switch(requests: Sequence[RowRequest]) -> list[list[RowRequest]]:
    """Rows that may share a batch: those up to ``position_switch`` of the model, and those beyond it."""
    sides: dict[bool, list[RowRequest]] = {}
    for request in requests:
        sides.setdefault(request.start.prompt.is_beyond_switch, []).append(request)
    return [sides[side] for side in sorted(sides)]


class RowGenerator(ABC):
    """Generates rows along one forward path."""

    @property
    @abstractmethod
    def is_pending(self) -> bool:
        """Whether there are unfinished rows."""

    @abstractmethod
    def submit(self, requests: Sequence[RowRequest]) -> list[list[int]]:
        """Takes rows to generate.

        Args:
            requests: the rows.

        Returns:
            Their numbers, in groups of rows that are sampled together. A group stays together in the next turn of its
            conversations, so that samples do not depend on which answer comes first.
        """

    @abstractmethod
    def advance(self) -> dict[int, Completion]:
        """Continues the generation for a while.

        Returns:
            The full answers, including their beginnings, of the rows that are finished now, by row; may be empty.
        """
