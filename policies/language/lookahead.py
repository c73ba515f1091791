"""Lookahead: a search for different beginnings of the texts of a group.

Axes: n rows that are written now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.splits import Lookahead
from mmgrpo.system.extras import required

from ..completion import Completion
from ..prefix import with_growing_cache
from .forward_paths import CachedPath, ForwardPath
from .row_generation import GenerationParams, RowStart


@dataclass(slots=True, eq=False)
class _Row:
    """A row of a search.

    Attributes:
        place: its row of the buffer.
        left: the row that it left; None: the first row of its group.
        birth: number of tokens that it shares with that row.
        tokens: its tokens.
        ended: whether it has its end token.
    """

    place: int
    left: _Row | None
    birth: int
    tokens: list[int]
    ended: bool = False

    def descends(self, row: _Row) -> bool:
        """Whether it is a row, or left one that descends from it."""
        return self is row or (self.left is not None and self.left.descends(row))


@dataclass(slots=True, eq=False)
class _Group:
    """The rows of a group in a search.

    Attributes:
        capacity: the maximum number of its rows.
        limit: the maximum number of tokens of its search.
        free: rows of the buffer that it has left.
        rows: its rows, the first one first.
        is_over: whether its search has ended.
    """

    capacity: int
    limit: int
    free: list[int]
    rows: list[_Row]
    is_over: bool = False

    @classmethod
    def of(cls, first_place: int, num_rows: int, limit: int) -> _Group:
        """A group with its first row, and these consecutive rows of the buffer."""
        free = list(range(first_place + 1, first_place + num_rows))
        return cls(num_rows, limit, free, [_Row(first_place, None, 0, [])])

    @property
    def places(self) -> list[int]:
        """The row of the buffer of each row."""
        return [row.place for row in self.rows]

    @property
    def unfinished(self) -> list[_Row]:
        """The rows that are written."""
        return [] if self.is_over else [row for row in self.rows if not row.ended]

    def drop(self, dropped: Sequence[_Row]) -> None:
        """Drops rows, and those that descend from them."""
        gone = [row for row in self.rows if any(row.descends(other) for other in dropped)]
        self.rows = [row for row in self.rows if row not in gone]
        self.free += [row.place for row in gone]

    def close(self, length: int, lookahead: Lookahead) -> None:
        """Ends the search after so many tokens, at its limit, or if the group is full and none of its rows can be
        dropped any more.
        """
        is_full = len(self.rows) == self.capacity or not self.unfinished
        is_settled = is_full and all(row.birth + lookahead.last_age < length - 1 for row in self.rows)
        self.is_over = self.is_over or is_settled or length >= self.limit


@torch.no_grad()
def search_beginnings(
    path: ForwardPath,
    starts: Sequence[RowStart],
    num_rows: Sequence[int],
    params: GenerationParams,
    lookahead: Lookahead,
    decode: Callable[[Sequence[int]], str],
) -> list[list[Completion]]:
    """The beginnings of the rows of each group, as sampled tokens.

    Args:
        path: the forward path of the rows.
        starts: the beginning of each group, in which its rows agree.
        num_rows: number of rows of each group.
        params: sampling parameters.
        lookahead: the search.
        decode: the text of tokens.

    Returns:
        For each group its rows, which continue the start; those with an end token are finished.

    Raises:
        ConfigError: the model runs without a cache.

    Source: LATR, arXiv:2510.24302, and its code (starreeze/latr, model/generation.py and model/sample_filter.py). There
        the search ends for all groups of a batch at once, at 98 % of their rows.
    """
    if not isinstance(path, CachedPath):
        raise ConfigError(
            f"a lookahead branches rows of a cache, and this model runs on {path}: use another rollout.strategy"
        )
    owners = [n for n, num in enumerate(num_rows) for _ in range(num)]
    size = max(params.batch_size, *num_rows)
    batches = path.decode_batches([start.read(path.fill) for start in starts], owners, size)
    search, beginnings = _Search(path, params, lookahead, decode), dict[int, list[Completion]]()
    for batch in batches:
        chosen = list(dict.fromkeys(owners[row] for row in batch))
        rows_of = search.run([starts[n] for n in chosen], [num_rows[n] for n in chosen])
        beginnings |= dict(zip(chosen, rows_of, strict=True))
    return [beginnings[n] for n in range(len(starts))]


@final
class _Search:
    """Searches groups together."""

    def __init__(
        self,
        path: CachedPath,
        params: GenerationParams,
        lookahead: Lookahead,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._path, self._params, self._lookahead, self._decode = path, params, lookahead, decode
        self._end_ids: set[int] = set(params.end_ids.tolist())
        self._distance: Any = required("rapidfuzz.distance", "a lookahead").Levenshtein.distance

    def run(self, starts: Sequence[RowStart], num_rows: Sequence[int]) -> list[list[Completion]]:
        """The beginnings of the rows of each of these groups."""
        transformer, device = self._path.transformer, self._path.transformer.device
        prompts = [start.read(self._path.fill) for start in starts]
        prefix = with_growing_cache(transformer.prefill(prompts, max_tokens=self._path.max_tokens))
        limits = [min(self._lookahead.max_tokens, self._params.length - start.num_initial) for start in starts]
        buffer = self._params.buffer(torch.full((sum(num_rows),), max(limits)))
        groups = [_Group.of(sum(num_rows[:n]), num, limits[n]) for n, num in enumerate(num_rows)]
        writing = [group.rows[0] for group in groups]
        for t in range(max(limits)):
            logits_nV = transformer.logits(prefix.hidden_ND)
            rows, sources = self._branch(t, groups, writing, logits_nV)
            for source, row in zip(sources[len(writing) :], rows[len(writing) :], strict=True):
                buffer.copy(writing[source].place, row.place)
            place_n = torch.tensor([row.place for row in rows], device=device)
            token_n = torch.tensor([row.tokens[-1] for row in rows], device=device)
            buffer.write(t, place_n, logits_nV[sources], token_n=token_n)
            for group in groups:
                group.drop([row for row in group.rows if self._is_similar(row, t + 1)])
                group.close(t + 1, self._lookahead)
            writing = [row for group in groups for row in group.unfinished]
            if not writing:
                break
            number = {id(row): n for n, row in enumerate(rows)}
            remaining = [number[id(row)] for row in writing]
            states = [sources[n] for n in remaining]
            if states != list(range(len(prefix.hidden_ND))):
                prefix = prefix.rows(torch.tensor(states, device=device))
            prefix, _ = transformer.extend(prefix, token_n[remaining, None])
        for row in (row for group in groups for row in group.rows):
            buffer.limit_N[row.place] = len(row.tokens)
        return [_completions(group, buffer.completions_of(group.places, self._params.end_ids)) for group in groups]

    def _branch(
        self, t: int, groups: Sequence[_Group], writing: Sequence[_Row], logits_nV: Tensor
    ) -> tuple[list[_Row], list[int]]:
        """Appends token t to the rows that are written, and branches; returns all of these, and the number of each
        one's logits.
        """
        first_n, second_n, is_likely_n = self._choices(logits_nV)
        number = {id(row): n for n, row in enumerate(writing)}
        branches, sources = [], list(range(len(writing)))
        for group in groups:
            uncertain = [row for row in group.unfinished if is_likely_n[number[id(row)]]]
            for row in uncertain[: group.capacity - len(group.rows)]:
                source = number[id(row)]
                branches.append(_Row(group.free.pop(0), row, t, [*row.tokens, second_n[source]]))
                group.rows.append(branches[-1])
                sources.append(source)
        for row, token in zip(writing, first_n, strict=True):
            row.tokens.append(token)
        rows = [*writing, *branches]
        for row in rows:
            row.ended = row.tokens[-1] in self._end_ids
        return rows, sources

    def _choices(self, logits_nV: Tensor) -> tuple[list[int], list[int], list[bool]]:
        """The likeliest token of each row, the second likeliest one, and whether that is likely enough."""
        logits_nV = self._params.sampling.tempered(logits_nV)
        if self._params.sampling.truncates:
            logits_nV = logits_nV.masked_fill(~self._params.sampling.support(logits_nV), -torch.inf)
        probability_n2, token_n2 = logits_nV.softmax(-1).topk(2, dim=-1)
        gap_n, second_n = probability_n2[:, 0] - probability_n2[:, 1], probability_n2[:, 1]
        is_likely_n = (second_n > self._lookahead.min_probability) & (gap_n < self._lookahead.max_gap)
        return token_n2[:, 0].tolist(), token_n2[:, 1].tolist(), is_likely_n.tolist()

    def _is_similar(self, row: _Row, length: int) -> bool:
        """Whether a row has not become different enough, at one of its ages."""
        age = length - row.birth
        if row.left is None or age not in self._lookahead.ages or len(row.tokens) < length:
            return False
        added, others = row.tokens[row.birth :], row.left.tokens[row.birth : length]
        if len(others) < age or not self._end_ids.isdisjoint(added + others):
            return False
        symbols = self._lookahead.symbols
        if symbols and self._decode(others[:1]).strip() in symbols:
            return False
        return self._distance(added, others) / age < self._lookahead.min_distance


def _completions(group: _Group, completions: Sequence[Completion]) -> list[Completion]:
    """One of each row, with the tokens that it shares with the row that it left; the first one for those that are
    missing.
    """
    first, num_missing = completions[0], group.capacity - len(completions)
    copied = replace(first, num_inherited=len(first.token_T))
    rows = zip(completions, group.rows, strict=True)
    return [*(replace(completion, num_inherited=row.birth) for completion, row in rows), *[copied] * num_missing]
