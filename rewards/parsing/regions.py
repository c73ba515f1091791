"""Regions of an image: polygons and COCO's run-length masks, parsed from text or a data row and rasterized on a grid.

A pixel belongs to a region if its center does. Grids are (H, W) arrays of bool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from .coordinates import MAX_COORDINATE, StatedBox, parse_boxes
from .extraction import finite, json_values

MAX_PIXELS = 4096 * 4096
MAX_CORNERS = 2_000
MAX_SHAPES = 100
MAX_DEPTH = 16

_SHAPE_KEYS = ("segmentation", "polygons", "polygon", "mask", "points", "rle")


@dataclass(frozen=True, slots=True)
class Polygon:
    """A closed outline without a coordinate frame; the inside follows the even-odd rule."""

    corners: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class RegionMask:
    """A mask of a complete image.

    Attributes:
        grid_HW: bool, which pixels it covers.
    """

    grid_HW: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.grid_HW.shape[1], self.grid_HW.shape[0]


Shape = Polygon | RegionMask | StatedBox


def parse_shapes(source: Any) -> list[Shape] | None:
    """Parse the regions in a text, or in the value of a data row; None if they are too many or too large.

    A polygon is a list of at least three points ``[x, y]`` or a flat list of at least six numbers; a mask is an object
    with ``size`` and ``counts``, or an image with nonzero pixels; anything else with boxes is parsed as boxes. At most
    ``MAX_SHAPES`` regions, and ``MAX_PIXELS`` in all masks together.
    """
    if isinstance(source, Image.Image):
        return [RegionMask(_covered(source))] if source.width * source.height <= MAX_PIXELS else []
    values = json_values(source) if isinstance(source, str) else [source]
    if isinstance(source, str) and not values:
        return list(parse_boxes(source))
    shapes: list[Shape] = []
    pixels = 0
    for shape in _shapes(values, 0):
        shapes.append(shape)
        pixels += shape.grid_HW.size if isinstance(shape, RegionMask) else 0
        if len(shapes) > MAX_SHAPES or pixels > MAX_PIXELS:
            return None
    return shapes


def _covered(image: Image.Image) -> np.ndarray:
    """Bool (H, W): nonzero pixels; images of more than 8 bits are not rescaled, so small instance ids are kept."""
    is_deep = image.mode == "F" or image.mode.startswith("I")
    return np.asarray(image if is_deep else image.convert("L")) != 0


def decode_rle(size: Any, counts: Any) -> np.ndarray | None:
    """Decode COCO's run-length encoding: runs in column-major order that alternate between 0 and 1, starting with 0.

    Args:
        size: [height, width], at most ``MAX_PIXELS`` pixels.
        counts: run lengths, as numbers or in COCO's compressed text.

    Returns:
        The (H, W) grid; None if the runs do not fill the image or are malformed.

    Source: pycocotools, maskApi.c, rleDecode and rleFrString.
    """
    height, width = _edges(size)
    runs = _runs(counts) if height * width else None
    if runs is None or len(runs) > height * width + 1 or min(runs, default=-1) < 0 or sum(runs) != height * width:
        return None
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(width, height).T


def rasterize_polygon(corners: Sequence[tuple[float, float]], width: int, height: int) -> np.ndarray:
    """Rasterize a polygon by the even-odd rule: (height, width) bool, pixels whose centers are inside.

    Args:
        corners: in pixels of the grid, from its upper left corner; they may be outside.
        width: columns of the grid.
        height: rows of the grid.

    Returns:
        The grid.
    """
    turns_HW = np.zeros((height, width + 1), dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True):
        low, high = min(y0, y1), max(y0, y1)
        rows = np.arange(_first_center(low, height), _first_center(high, height))
        if len(rows):
            crossing = x0 + (rows + 0.5 - y0) * ((x1 - x0) / (y1 - y0))
            turns_HW[rows, np.clip(np.ceil(crossing - 0.5), 0, width).astype(int)] ^= True
    return np.logical_xor.accumulate(turns_HW[:, :-1], axis=1)


def _first_center(edge: float, count: int) -> int:
    """The first row whose center is not above an edge."""
    return int(np.clip(np.ceil(edge - 0.5), 0, count))


def _shapes(value: Any, depth: int) -> Iterator[Shape]:
    if depth > MAX_DEPTH:
        return
    corners = _corners(value)
    if corners is not None:
        yield Polygon(corners)
    elif isinstance(value, Mapping) and "counts" in value and "size" in value:
        grid_HW = decode_rle(value["size"], value["counts"])
        if grid_HW is not None:
            yield RegionMask(grid_HW)
    elif isinstance(value, Mapping):
        shape_value = next((value[key] for key in _SHAPE_KEYS if value.get(key) is not None), None)
        boxes = parse_boxes(value) if shape_value is None else []
        yield from boxes
        for inner in [] if boxes else value.values() if shape_value is None else [shape_value]:
            yield from _shapes(inner, depth + 1)
    elif isinstance(value, list | tuple):
        boxes = parse_boxes(value) if all(finite(item) is not None for item in value) or _two_corners(value) else []
        yield from boxes
        for inner in [] if boxes else value:
            yield from _shapes(inner, depth + 1)


def _corners(value: Any) -> tuple[tuple[float, float], ...] | None:
    """The corners of a polygon: at least three points, or at least six numbers, alternating x and y."""
    if not isinstance(value, list | tuple) or not 3 <= len(value) <= 2 * MAX_CORNERS:
        return None
    flat = [number for item in value for number in (item if isinstance(item, list | tuple) else [item])]
    pairs = all(isinstance(item, list | tuple) and len(item) == 2 for item in value)
    bare = len(value) >= 6 and len(value) % 2 == 0 and not any(isinstance(item, list | tuple) for item in value)
    numbers = [number for number in map(finite, flat) if number is not None and abs(number) <= MAX_COORDINATE]
    if not (pairs or bare) or len(numbers) != len(flat) or len(numbers) > 2 * MAX_CORNERS:
        return None
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _two_corners(value: Sequence[Any]) -> bool:
    return len(value) == 2 and all(isinstance(item, list | tuple) and len(item) == 2 for item in value)


def _edges(size: Any) -> tuple[int, int]:
    """Height and width; 0 and 0 if invalid or too large."""
    edges = list(size) if isinstance(size, list | tuple) and len(size) == 2 else []
    integers = [
        edge for edge in edges if isinstance(edge, int) and not isinstance(edge, bool) and 0 < edge <= MAX_PIXELS
    ]
    return (integers[0], integers[1]) if len(integers) == 2 and integers[0] * integers[1] <= MAX_PIXELS else (0, 0)


def _runs(counts: Any) -> list[int] | None:
    if isinstance(counts, bytes):
        return _uncompressed(counts)
    if isinstance(counts, str):
        return _uncompressed(counts.encode("ascii", "replace"))
    if not isinstance(counts, list | tuple):
        return None
    runs = [
        count for count in counts if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_PIXELS
    ]
    return runs if len(runs) == len(counts) else None


def _uncompressed(counts: bytes) -> list[int] | None:
    """Decode COCO's text: five bits per character, lowest first, signed; from the fourth run on, the difference to
    two runs earlier.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for code in counts:
        bits = code - 48
        if not 0 <= bits < 64 or shift > 30:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        value -= (1 << shift) if bits & 16 else 0
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
        if not 0 <= runs[-1] <= MAX_PIXELS:
            return None
    return None if shift else runs
