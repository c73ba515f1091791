"""Rows of similar length, which run through a model together with little padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

FORWARD_TOKENS = 256
"""Tokens of padding that take as long as the calls of another forward."""

LOADING_FORWARD_TOKENS = 16384
"""The same, where a forward first loads the weights: from the host if they are offloaded, or from other processes."""


def length_buckets(lengths: Sequence[int], forward_tokens: int) -> list[list[int]]:
    """Divides rows into forwards, each as long as its longest row, with the least padding and the fewest forwards.

    Args:
        lengths: tokens of each row.
        forward_tokens: tokens of padding that are as bad as another forward.

    Returns:
        The rows of each forward, shorter ones first; rows of equal length together, in order.
    """
    counts = sorted(Counter(lengths).items())
    best: list[tuple[int, int]] = [(0, 0)]  # for the shortest rows: the cost, and where the last forward begins
    for end in range(1, len(counts) + 1):
        num_rows, options = 0, []
        for start in range(end - 1, -1, -1):
            num_rows += counts[start][1]
            options.append((best[start][0] + forward_tokens + num_rows * counts[end - 1][0], start))
        best.append(min(options))
    bounds, end = [], len(counts)
    while end:
        start = best[end][1]
        bounds.append((counts[start][0], counts[end - 1][0]))
        end = start
    return [[n for n, length in enumerate(lengths) if low <= length <= high] for low, high in reversed(bounds)]


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows of several lengths, with zeros after their ends: R_1, .. R_N by D -> (N, max R, D).

    The backward pass of ``pad_sequence`` copies the gradient of all rows for each row.
    """
    longest = max(map(len, rows))
    return torch.stack([pad(row_RD, (0, 0, 0, longest - len(row_RD))) for row_RD in rows])
