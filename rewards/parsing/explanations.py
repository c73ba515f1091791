"""Explanations of scores, with the keys that reports display; see ``docs/how-to/reward-explanations.md``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .boxes import Box, CoordinateFrame, Point

MAX_CHARS = 200
MAX_SHAPES = 30  # boxes or points of answer and reference, each
MASK_SIDE = 48  # cells along the longer side of a region

Span = tuple[float, float]


def excerpt(text: str | None) -> str | None:
    """The text, truncated with an ellipsis."""
    return text if text is None or len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}\u2026"


def comparison(
    parsed: str | float | None, reference: str | float | Sequence[str], reason: str | None = None
) -> dict[str, Any]:
    """Explanation of a comparison: the parsed answer, the reference, and an optional reason.

    Args:
        parsed: the parsed answer; None if there is none.
        reference: the parsed reference, or all accepted references.
        reason: why the answer is not correct, in a few words.

    Returns:
        ``parsed``, ``reference`` and, if present, ``reason``.
    """
    reference_text = reference if isinstance(reference, str | int | float) else " or ".join(reference)
    explanation = {"parsed": _short(parsed), "reference": _short(reference_text)}
    return explanation if reason is None else explanation | {"reason": reason}


def transcript_comparison(transcript: str, reference: str, rate: float) -> dict[str, Any]:
    """Explanation of a transcript: the transcript, its reference and its error rate."""
    return comparison(transcript, reference, f"error rate {rate:.2f}")


def rounded(parts: Mapping[str, float]) -> dict[str, float]:
    """The components of a score, rounded to four decimals."""
    return {name: round(part, 4) for name, part in parts.items()}


def parts(numbers: Mapping[str, float]) -> dict[str, Any]:
    """The components of a score under the key ``parts``; NaN and infinity are omitted."""
    return {"parts": rounded({name: number for name, number in numbers.items() if math.isfinite(number)})}


def too_many_boxes(count: int, most: int) -> dict[str, Any]:
    """Explanation for an answer with too many boxes; no box is listed."""
    return {"boxes": [], "num_boxes": count, "reason": f"{count} boxes, more than {most}"}


def boxes_explanation(
    stated: Sequence[Box],
    expected: Sequence[Box],
    *,
    labels: Sequence[str | None] = (),
    pairs: Sequence[tuple[int, int, float]] = (),
) -> dict[str, Any]:
    """Explanation with boxes of one frame, and the matched pairs with their overlap.

    Args:
        stated: boxes of the answer.
        expected: reference boxes.
        labels: labels of the stated boxes.
        pairs: (index in stated, index in expected, overlap) of the matched boxes.

    Returns:
        ``boxes``, ``space`` and, if present, ``pairs``; boxes beyond ``MAX_SHAPES`` are omitted, and ``num_boxes`` has
        the total.
    """
    padded_labels = [*labels, *[None] * (len(stated) - len(labels))]
    boxes = [_box(box, "stated", label) for box, label in list(zip(stated, padded_labels, strict=True))[:MAX_SHAPES]]
    boxes += [_box(box, "reference", None) for box in expected[:MAX_SHAPES]]
    explanation: dict[str, Any] = (
        {"boxes": boxes, "space": _frame((*expected, *stated)[0].frame)} if boxes else {"boxes": []}
    )
    visible_pairs = [(s, w, overlap) for s, w, overlap in pairs if max(s, w) < MAX_SHAPES]
    explanation |= {"num_boxes": len(stated)} if len(stated) > MAX_SHAPES else {}
    return explanation | (
        {"pairs": [[s, w, round(overlap, 4)] for s, w, overlap in visible_pairs]} if visible_pairs else {}
    )


def points_explanation(stated: Sequence[Point], expected: Box) -> dict[str, Any]:
    """Explanation with points and the reference box, all in one frame."""
    points = [{"point": _rounded(point.x, point.y), "role": "stated"} for point in stated[:MAX_SHAPES]]
    return {"points": points, "boxes": [_box(expected, "reference", None)], "space": _frame(expected.frame)}


def paths_explanation(stated: Sequence[Point], expected: Sequence[Point]) -> dict[str, Any]:
    """Explanation with the points of two paths in one frame; points beyond ``MAX_SHAPES`` of each are omitted."""
    sides = [("stated", point) for point in stated[:MAX_SHAPES]] + [
        ("reference", reference_point) for reference_point in expected[:MAX_SHAPES]
    ]
    points = [{"point": _rounded(point.x, point.y), "role": role} for role, point in sides]
    return {"points": points, "space": _frame(expected[0].frame)}


def mask_entry(grid_HW: np.ndarray, around: Box, role: str) -> dict[str, Any]:
    """A downsampled region: the cells of a grid over a box, as column-major runs that alternate between 0 and 1.

    Args:
        grid_HW: bool, the covered cells.
        around: the box that the grid covers.
        role: ``stated`` or ``reference``.

    Returns:
        An entry of ``masks``.
    """
    height, width = (min(side, MASK_SIDE) for side in grid_HW.shape)
    rows, columns = (
        ((np.arange(n) + 0.5) * side / n).astype(int) for n, side in zip((height, width), grid_HW.shape, strict=True)
    )
    cells = grid_HW[rows][:, columns].T.reshape(-1)
    edges = np.flatnonzero(np.diff(cells)) + 1
    counts = np.diff(edges, prepend=0, append=len(cells)).tolist()
    return _box(around, role, None) | {"size": [height, width], "counts": [0, *counts] if cells[0] else counts}


def masks_explanation(masks: Sequence[Mapping[str, Any]], frame: CoordinateFrame) -> dict[str, Any]:
    """Explanation with regions of one frame."""
    return {"masks": [dict(mask) for mask in masks], "space": _frame(frame)}


def spans_explanation(stated: Sequence[Span], expected: Span) -> dict[str, Any]:
    """Explanation with the time spans of the answer and the reference."""
    spans = [{"span": _rounded(*span), "role": "stated"} for span in stated[:MAX_SHAPES]]
    return {"spans": [*spans, {"span": _rounded(*expected), "role": "reference"}]}


def _short(value: str | float | None) -> str | float | None:
    return excerpt(value) if isinstance(value, str) else value


def _box(box: Box, role: str, label: str | None) -> dict[str, Any]:
    corners = {"box": _rounded(box.left, box.top, box.right, box.bottom), "role": role}
    return corners if label is None else corners | {"label": excerpt(label)}


def _frame(frame: CoordinateFrame) -> dict[str, Any]:
    return {"name": frame.name, "width": frame.width, "height": frame.height}


def _rounded(*numbers: float) -> list[float]:
    return [round(number, 3) for number in numbers]
