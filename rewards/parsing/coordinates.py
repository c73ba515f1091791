"""Parses boxes, points and time spans from model text or data rows, as numbers without a coordinate frame."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .extraction import finite, json_values, label_key
from .numerals import seconds

MAX_COORDINATE = 1e6
MAX_DEPTH = 32

_BOX_KEYS = ("bbox_2d", "bbox", "box_2d", "box")
_EDGE_KEYS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"), ("left", "top", "right", "bottom"))
_POINT_KEYS = ("point_2d", "point", "coordinate", "position")
_LABEL_KEYS = ("label", "labels", "category", "class")
_SCORE_KEYS = ("score", "confidence")
_TAGGED = re.compile(r"<(?:box|\|box_start\|)>([^<>]{1,2000}+)<(?:/box|\|box_end\|)>")
_PLAIN = re.compile(r"(?<![\w.])-?\d{1,12}(?:\.\d{1,12})?(?![\w])")


@dataclass(frozen=True, slots=True)
class StatedBox:
    """A parsed box: four numbers, with an optional label and confidence score."""

    numbers: tuple[float, float, float, float]
    label: str | None = None
    score: float | None = None


def parse_boxes(source: Any) -> list[StatedBox]:
    """Parse the boxes in a text, or in the value of a data row, in order.

    A box is a list of four numbers, two corners, an object that names its edges (``x1 y1 x2 y2``, ``xmin ymin xmax
    ymax``, ``left top right bottom``), or an object with one of these as ``bbox_2d``, ``bbox``, ``box_2d`` or ``box``
    and optionally a ``label`` and a ``score``. Numbers may be strings. A text without brackets that has exactly four
    numbers is one box. Numbers beyond ``MAX_COORDINATE`` are ignored. In a text with ``<box>`` tags, or Qwen-VL's
    ``<|box_start|>``, only they hold boxes.
    """
    if isinstance(source, str) and (tagged := _TAGGED.findall(source)):
        source = " ".join(tagged)
    values = json_values(source) if isinstance(source, str) else [source]
    boxes = list(_boxes(values if isinstance(source, str) else source, _Named(), 0))
    if boxes or not isinstance(source, str) or values:
        return boxes
    plain = [float(digits) for digits in _PLAIN.findall(source)]
    four = _numbers(plain, 4)
    return [] if four is None else [StatedBox((four[0], four[1], four[2], four[3]))]


def single_box(value: Any) -> StatedBox | None:
    """The box of a data row; None unless there is exactly one."""
    boxes = parse_boxes(value)
    return boxes[0] if len(boxes) == 1 else None


def box_list(value: Any) -> list[StatedBox] | None:
    """The boxes of a data row; empty for an empty list or its text, None for anything else without boxes."""
    boxes = parse_boxes(value)
    return boxes if boxes or value in ([], (), "[]") else None


def parse_points(text: str) -> list[tuple[float, float]]:
    """Parse the points in a text, in order: lists of two numbers, or objects with one; or exactly two bare numbers."""
    values = json_values(text)
    if values:
        return list(_points(values, 0))
    two = _numbers([float(digits) for digits in _PLAIN.findall(text)], 2)
    return [] if two is None else [(two[0], two[1])]


def parse_spans(text: str) -> list[tuple[float, float]]:
    """Parse the time spans in a text: lists of two numbers, objects with start and end; or exactly two times."""
    spans = [span for value in json_values(text) for span in _spans(value, 0)]
    stated = [] if spans else seconds(text)
    return [(stated[0], stated[1])] if len(stated) == 2 else spans


def pair(value: Any) -> tuple[float, float] | None:
    """Two numbers, as a list or as the start and end of an object; None for anything else."""
    if isinstance(value, Mapping):
        value = [value.get("start"), value.get("end")]
    two = _numbers(value, 2)
    return None if two is None else (two[0], two[1])


def span_iou(span: tuple[float, float], other: tuple[float, float]) -> float:
    """Intersection over union of two time spans; 0 if either ends before it begins.

    Args:
        span: start and end.
        other: start and end.

    Returns:
        0 to 1.
    """
    if span[1] <= span[0] or other[1] <= other[0]:
        return 0.0
    shared = max(min(span[1], other[1]) - max(span[0], other[0]), 0.0)
    return shared / ((span[1] - span[0]) + (other[1] - other[0]) - shared)


@dataclass(frozen=True, slots=True)
class _Named:
    """The label and the score next to a box; each may be a list for a list of boxes."""

    label: Any = None
    score: Any = None

    def each(self, count: int) -> list[_Named]:
        """The label and score of each of ``count`` boxes."""
        lists = [
            value if isinstance(value, list | tuple) and len(value) == count else [value] * count
            for value in (self.label, self.score)
        ]
        return [_Named(*pair) for pair in zip(*lists, strict=True)]


def _boxes(value: Any, labels_above: _Named, depth: int) -> Iterator[StatedBox]:
    if depth > MAX_DEPTH:
        return
    four = _four(value)
    if four is not None:
        yield StatedBox((four[0], four[1], four[2], four[3]), _label(labels_above.label), finite(labels_above.score))
    elif isinstance(value, Mapping):
        box_value = _first_value(value, _BOX_KEYS)
        labels = _Named(_first_value(value, _LABEL_KEYS), _first_value(value, _SCORE_KEYS))
        for inner in value.values() if box_value is None else [box_value]:
            yield from _boxes(inner, labels, depth + 1)
    elif isinstance(value, list | tuple):
        joined = _corners_joined(value)
        for inner, item_labels in zip(joined, labels_above.each(len(joined)), strict=True):
            yield from _boxes(inner, item_labels, depth + 1)


def _first_value(value: Mapping[Any, Any], keys: tuple[str, ...]) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _four(value: Any) -> list[float] | None:
    """Four numbers, two corners, or an object that names its edges."""
    if isinstance(value, Mapping):
        return next((_numbers([value.get(key) for key in edges], 4) for edges in _EDGE_KEYS if edges[0] in value), None)
    if isinstance(value, list | tuple) and len(value) == 2:
        corners = [_numbers(corner, 2) for corner in value]
        return [*corners[0], *corners[1]] if corners[0] is not None and corners[1] is not None else None
    return _numbers(value, 4)


def _corners_joined(values: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Consecutive corners, ``(x1,y1),(x2,y2)``, joined to boxes; anything else unchanged."""
    if not values or len(values) % 2 or any(_numbers(value, 2) is None for value in values):
        return list(values)
    return [[values[i], values[i + 1]] for i in range(0, len(values), 2)]


def _points(value: Any, depth: int) -> Iterator[tuple[float, float]]:
    two = _numbers(value, 2)
    if two is not None:
        yield two[0], two[1]
    elif isinstance(value, Mapping) and depth <= MAX_DEPTH:
        point_value = _first_value(value, _POINT_KEYS)
        if point_value is None and "x" in value and "y" in value:
            point_value = [value["x"], value["y"]]
        for inner in value.values() if point_value is None else [point_value]:
            yield from _points(inner, depth + 1)
    elif isinstance(value, list | tuple) and depth <= MAX_DEPTH:
        for inner in value:
            yield from _points(inner, depth + 1)


def _spans(value: Any, depth: int) -> Iterator[tuple[float, float]]:
    two = pair(value)
    if two is not None:
        yield two
    elif isinstance(value, list | tuple | Mapping) and depth <= MAX_DEPTH:
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _spans(inner, depth + 1)


def _numbers(value: Any, count: int) -> list[float] | None:
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    numbers = [number for number in map(_number, value) if number is not None and abs(number) <= MAX_COORDINATE]
    return numbers if len(numbers) == count else None


def _number(value: Any) -> float | None:
    """A number, or a string that is one."""
    return float(value) if isinstance(value, str) and _PLAIN.fullmatch(value.strip()) else finite(value)


def _label(label: Any) -> str | None:
    return label_key(str(label)) if isinstance(label, str | int) else None
