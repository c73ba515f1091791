"""What a score rests on, in the keys that reports draw: see "Explanations" in ``docs/rewards.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmgrpo.rewards.boxes import Box, Point, Space

MAX_CHARS = 200
MAX_SHAPES = 30  # boxes or points of each side


def excerpt(text: str | None) -> str | None:
    """The text, or its beginning with an ellipsis."""
    return text if text is None or len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}\u2026"


def drawn_boxes(
    stated: Sequence[Box],
    wanted: Sequence[Box],
    *,
    labels: Sequence[str | None] = (),
    pairs: Sequence[tuple[int, int, float]] = (),
) -> dict[str, Any]:
    """Boxes of one space with it; which stated box goes with which reference, and how much they overlap.

    Args:
        stated: what the answer says.
        wanted: the references.
        labels: of the stated boxes, if they have any.
        pairs: (index in stated, index in wanted, overlap) of what was matched.

    Returns:
        ``boxes``, ``space`` and, if there are any, ``pairs``; boxes beyond ``MAX_SHAPES`` are left out.
    """
    named = [*labels, *[None] * (len(stated) - len(labels))]
    boxes = [_box(box, "stated", label) for box, label in list(zip(stated, named, strict=True))[:MAX_SHAPES]]
    boxes += [_box(box, "reference", None) for box in wanted[:MAX_SHAPES]]
    drawn: dict[str, Any] = {"boxes": boxes, "space": _space((*wanted, *stated)[0].space)} if boxes else {"boxes": []}
    kept = [(s, w, overlap) for s, w, overlap in pairs if max(s, w) < MAX_SHAPES]
    return drawn | ({"pairs": [[s, w, round(overlap, 4)] for s, w, overlap in kept]} if kept else {})


def drawn_points(stated: Sequence[Point], wanted: Box) -> dict[str, Any]:
    """Points and the box that they should lie in, all of one space."""
    points = [{"point": _rounded(point.x, point.y), "role": "stated"} for point in stated[:MAX_SHAPES]]
    return {"points": points, "boxes": [_box(wanted, "reference", None)], "space": _space(wanted.space)}


def _box(box: Box, role: str, label: str | None) -> dict[str, Any]:
    corners = {"box": _rounded(box.left, box.top, box.right, box.bottom), "role": role}
    return corners if label is None else corners | {"label": excerpt(label)}


def _space(space: Space) -> dict[str, Any]:
    return {"name": space.name, "width": space.width, "height": space.height}


def _rounded(*numbers: float) -> list[float]:
    return [round(number, 3) for number in numbers]
