"""Rows that continue others, run as a tree: their common prefixes run through the model once.

Axes: N rows, T tokens, D model width, K rows of a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..prefix import Prefix, concat_prefixes
from .length_buckets import length_buckets, stacked
from .transformer import Transformer


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """Tokens that some rows have in common.

    Attributes:
        rows: the rows.
        start: first token.
        end: one past the last token.
        children: the segments that follow in those rows; empty if the rows end.
    """

    rows: tuple[int, ...]
    start: int
    end: int
    children: tuple[TokenSegment, ...]


def segment_tree(
    rows: Sequence[int], tokens: Sequence[Sequence[int]], forks: Sequence[int]
) -> tuple[TokenSegment, ...]:
    """The tree of rows of one prompt: rows branch only at forks, wherever their tokens differ.

    Args:
        rows: row numbers.
        tokens: tokens of every row, by its number.
        forks: numbers of tokens that rows took over from others.

    Returns:
        The segments that follow the prompt.
    """
    return _below(tuple(rows), tokens, 0, sorted(set(forks)))


def _below(
    rows: tuple[int, ...], tokens: Sequence[Sequence[int]], start: int, forks: Sequence[int]
) -> tuple[TokenSegment, ...]:
    ahead = [fork for fork in forks if fork > start]
    if not ahead:
        return tuple(TokenSegment((row,), start, len(tokens[row]), ()) for row in rows)
    branches: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        ended = len(tokens[row]) <= ahead[0]
        branches.setdefault((ended, *tokens[row][: ahead[0]]), []).append(row)
    branch_segments = []
    for (ended, *_), rows_of_branch in branches.items():
        if ended or len(rows_of_branch) == 1:
            branch_segments.append(TokenSegment(tuple(rows_of_branch), start, len(tokens[rows_of_branch[0]]), ()))
            continue
        children = _below(tuple(rows_of_branch), tokens, ahead[0], ahead[1:])
        only = children[0] if len(children) == 1 else None
        end, following = (ahead[0], children) if only is None else (only.end, only.children)
        branch_segments.append(TokenSegment(tuple(rows_of_branch), start, end, following))
    return tuple(branch_segments)


def tree_states(
    transformer: Transformer,
    prefix: Prefix,
    trees: Sequence[Sequence[TokenSegment]],
    tokens: Sequence[Tensor],
    *,
    forward_tokens: int,
) -> Tensor:
    """The states that predict each token of N rows; each token of a segment runs once, the last token of a row never.

    Args:
        transformer: the model.
        prefix: one row per tree: its prompt.
        trees: trees of the prompts, over all rows.
        tokens: tokens of every row, at least one each.
        forward_tokens: tokens of padding that are as bad as another forward.

    Returns:
        (N, T, D), undefined after a row's end.
    """
    pieces: list[list[Tensor]] = [[] for _ in tokens]
    level = [(k, segment) for k, tree in enumerate(trees) for segment in tree]
    while level:
        grown_prefixes: list[Prefix] = []
        following: list[tuple[int, TokenSegment]] = []
        for batch in _together(level, forward_tokens):
            index_K = torch.tensor([k for k, _ in batch], device=prefix.hidden_ND.device)
            batch_prefix = prefix.continued(index_K, grows=bool(batch[0][1].children))
            first_K1D, ahead = batch_prefix.hidden_ND[:, None], [_run(segment, tokens) for _, segment in batch]
            hidden_KRD = first_K1D
            if max(map(len, ahead)) > 0:
                token_KR = pad_sequence(ahead, batch_first=True).to(first_K1D.device)
                batch_prefix, later_KRD = transformer.extend(batch_prefix, token_KR)
                hidden_KRD = torch.cat([first_K1D, later_KRD], dim=1)
            base = sum(len(grown_prefix.hidden_ND) for grown_prefix in grown_prefixes)
            for k, ((_, segment), hidden_RD) in enumerate(zip(batch, hidden_KRD.unbind(), strict=True)):
                for row in segment.rows:
                    pieces[row].append(hidden_RD[: segment.end - segment.start])
                following += [(base + k, child) for child in segment.children]
            if batch[0][1].children:
                grown_prefixes.append(batch_prefix)
        level = following
        prefix = concat_prefixes(grown_prefixes) if grown_prefixes else prefix
    return stacked([torch.cat(parts) for parts in pieces])


def _run(segment: TokenSegment, tokens: Sequence[Tensor]) -> Tensor:
    """The input tokens of a segment."""
    return tokens[segment.rows[0]][segment.start : segment.end if segment.children else segment.end - 1]


def _together(level: Sequence[tuple[int, TokenSegment]], forward_tokens: int) -> list[list[tuple[int, TokenSegment]]]:
    """Batches of segments: those that end rows, of similar lengths, and those of one length that others follow."""
    ends = [item for item in level if not item[1].children]
    buckets = length_buckets([_length(segment) for _, segment in ends], forward_tokens)
    batches = [[ends[n] for n in bucket] for bucket in buckets]
    inner: dict[int, list[tuple[int, TokenSegment]]] = {}
    for item in level:
        if item[1].children:
            inner.setdefault(_length(item[1]), []).append(item)
    return [*batches, *inner.values()]


def _length(segment: TokenSegment) -> int:
    return segment.end - segment.start
