"""Masks of reward explanations as SVG outlines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mmgrpo.report.logs import finite_numbers

MAX_SIDE = 64  # cells

# H rows, W columns of cells


def outline(mask: Mapping[str, Any], scale: tuple[float, float]) -> str | None:
    """The border of a mask as SVG path data, in percent of the image.

    Args:
        mask: ``box``, ``size`` and ``counts`` of an explanation.
        scale: the coordinates of the lower right corner of the image.

    Returns:
        The path; None if the mask is malformed.
    """
    box, grid_HW = finite_numbers(mask.get("box"), 4), _grid(mask.get("size"), mask.get("counts"))
    if box is None or grid_HW is None:
        return None
    left, top, right, bottom = (100 * edge / scale[axis % 2] for axis, edge in enumerate(box))
    height, width = grid_HW.shape

    def x(column: int) -> str:
        return f"{left + (right - left) * column / width:.6g}"

    def y(row: int) -> str:
        return f"{top + (bottom - top) * row / height:.6g}"

    padded_HW = np.pad(grid_HW, 1)
    across = (f"M{x(a)} {y(row)}H{x(b)}" for row, a, b in _runs(padded_HW[1:, 1:-1] != padded_HW[:-1, 1:-1]))
    down = (f"M{x(column)} {y(a)}V{y(b)}" for column, a, b in _runs((padded_HW[1:-1, 1:] != padded_HW[1:-1, :-1]).T))
    return "".join((*across, *down))


def _runs(lines: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Line, start and end of every run of True."""
    for number, line in enumerate(np.pad(lines, ((0, 0), (1, 1))).astype(np.int8)):
        turns = np.flatnonzero(np.diff(line)).tolist()
        yield from ((number, start, end) for start, end in zip(turns[::2], turns[1::2], strict=True))


def _grid(size: object, counts: object) -> np.ndarray | None:
    """(H, W) bool of a column-major run-length encoding that starts with zeros."""
    sides, runs = _integers(size), _integers(counts)
    if len(sides) != 2 or not runs or not all(0 < side <= MAX_SIDE for side in sides):
        return None
    if min(runs) < 0 or sum(runs) != sides[0] * sides[1]:
        return None
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(sides[1], sides[0]).T


def _integers(value: object) -> Sequence[int]:
    is_list_of_ints = isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    )
    return value if is_list_of_ints and isinstance(value, list) else []
