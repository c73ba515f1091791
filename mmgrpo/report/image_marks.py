"""Boxes, points and outlines from reward explanations, to draw over an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgrpo.report.logs import finite_numbers, is_number
from mmgrpo.report.outlines import outline

NORMALIZED = {"norm1000": (1000.0, 1000.0), "norm1": (1.0, 1.0)}
MAX_MARKS = 60
POINT = 1.0  # half the side of a point's square, in percent

Explanations = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMark:
    """A box or an outline over an image, in percent of its sides.

    Attributes:
        kind: ``reference``, ``before`` or ``after``.
        label: label of the box, and its IoU with the matched reference.
        path: SVG path of an outline, which replaces the box.
    """

    kind: str
    left: float
    top: float
    width: float
    height: float
    label: str
    path: str | None = None


def marks_of(explanations: Explanations, size: Sequence[float] | None, kind: str) -> list[ImageMark]:
    """The boxes, points and outlines to draw over an image.

    Args:
        explanations: reward -> its explanation.
        size: original width and height of the image, if recorded.
        kind: kind of the marks that are no reference: ``before`` or ``after``.

    Returns:
        The marks; none for a reward whose coordinates have no recorded scale.
    """
    marks = [mark for explanation in explanations.values() for mark in _marks(explanation, size, kind)]
    return list(dict.fromkeys(marks))[:MAX_MARKS]


def _marks(explanation: Mapping[str, Any], size: Sequence[float] | None, kind: str) -> Iterator[ImageMark]:
    scale = _scale(explanation.get("space"), size)
    if scale is None:
        return
    overlap = {
        pair[0]: pair[2]
        for pair in _list(explanation, "pairs")
        if isinstance(pair, list) and len(pair) == 3 and is_number(pair[0])
    }
    for index, entry in enumerate(_list(explanation, "boxes")):
        corners = finite_numbers(entry.get("box"), 4) if isinstance(entry, dict) else None
        if corners is not None:
            is_reference = entry.get("role") == "reference"
            parts = [str(entry["label"])] if entry.get("label") is not None else []
            parts += [f"IoU {overlap[index]:.2f}"] if not is_reference and is_number(overlap.get(index)) else []
            yield _mark("reference" if is_reference else kind, corners, scale, " ".join(parts))
    for entry in _list(explanation, "points"):
        point = finite_numbers(entry.get("point"), 2) if isinstance(entry, dict) else None
        if point is not None:
            x, y = point[0] / scale[0] * 100, point[1] / scale[1] * 100
            yield _mark(kind, [x - POINT, y - POINT, x + POINT, y + POINT], (100.0, 100.0), "point")
    for entry in _list(explanation, "masks"):
        path = outline(entry, scale) if isinstance(entry, dict) else None
        if path is not None:
            role = "reference" if entry.get("role") == "reference" else kind
            yield replace(_mark(role, entry["box"], scale, "region"), path=path)


def _scale(space: object, size: Sequence[float] | None) -> tuple[float, float] | None:
    """The coordinates of the lower right corner of the image."""
    if not isinstance(space, dict):
        return None
    sides = finite_numbers([space.get("width"), space.get("height")], 2)
    if sides is None:
        default_scale = size if space.get("name") == "original" else NORMALIZED.get(str(space.get("name")))
        sides = finite_numbers(list(default_scale or ()), 2)
    return (sides[0], sides[1]) if sides is not None and min(sides) > 0 else None


def _mark(kind: str, corners: Sequence[float], scale: tuple[float, float], label: str) -> ImageMark:
    left, right = (min(max(x / scale[0] * 100, 0.0), 100.0) for x in (corners[0], corners[2]))
    top, bottom = (min(max(y / scale[1] * 100, 0.0), 100.0) for y in (corners[1], corners[3]))
    width, height = max(right - left, 0.0), max(bottom - top, 0.0)
    return ImageMark(
        kind=kind, left=round(left, 2), top=round(top, 2), width=round(width, 2), height=round(height, 2), label=label
    )


def _list(explanation: Mapping[str, Any], key: str) -> list[Any]:
    value = explanation.get(key)
    return value if isinstance(value, list) else []
