"""Checks of the objects that a prompt requires against detected boxes; pure functions.

Boxes are (left, top, right, bottom) in pixels of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.errors import DataError

from ..parsing.boxes import Box, CoordinateFrame, iou

RELATIONS = ("left of", "right of", "above", "below")
FRAME = CoordinateFrame("original")


@dataclass(frozen=True, slots=True)
class DetectedObject:
    """A detected object with its confidence."""

    label: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A requirement of a prompt: objects that must be present or absent.

    Attributes:
        label: the class.
        count: minimum number of objects; for an excluded clause the number that is too many.
        attribute: required attribute, such as a color or a material.
        among: the alternative attributes; empty for the colors.
        relation: required position relative to the objects of another clause.
        target: index of that clause, from 0.
    """

    label: str
    count: int = 1
    attribute: str | None = None
    among: tuple[str, ...] = ()
    relation: str | None = None
    target: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseResults:
    """Results of the clauses.

    Attributes:
        satisfied: per clause, included ones first, whether it is satisfied.
        reasons: the errors, in words.
    """

    satisfied: tuple[bool, ...]
    reasons: tuple[str, ...]


Attributes = Callable[[Sequence[DetectedObject], Clause], Sequence[str]]
"""Returns the attribute of each object, among the attributes of the clause."""


def clauses_of(columns: Mapping[str, Any], name: str) -> list[Clause]:
    """Parse the clauses in a column, in GenEval's format: mappings with class, count, color and position, or with
    attribute.

    Raises: DataError for a column in another format.
    """
    clauses = []
    for entry in columns.get(name) or ():
        valid_keys = {"class", "count", "color", "colour", "attribute", "among", "position"}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("class"), str):
            raise DataError(f"column '{name}' must hold mappings with a class, got {entry!r:.80}")
        unknown = {key for key, value in entry.items() if value is not None} - valid_keys
        if unknown:
            raise DataError(f"column '{name}' has {sorted(unknown)}, where {sorted(valid_keys)} are known")
        relation, target = entry.get("position") or (None, 0)
        if relation is not None and (relation not in RELATIONS or not 0 <= int(target) < len(clauses)):
            raise DataError(
                f"column '{name}': a position is one of {', '.join(RELATIONS)} and the number of a clause before it, "
                f"got {entry['position']!r:.60}"
            )
        clauses.append(
            Clause(
                label=entry["class"],
                count=int(entry.get("count") or 1),
                attribute=entry.get("color") or entry.get("colour") or entry.get("attribute"),
                among=tuple(entry.get("among") or ()),
                relation=relation,
                target=int(target),
            )
        )
    return clauses


def select_detections(
    objects: Sequence[DetectedObject], *, threshold: float, max_overlap: float, max_objects: int
) -> list[DetectedObject]:
    """Filter objects by threshold, number per class and overlap with more confident objects of the class; most
    confident first.

    ``max_overlap`` is the minimum IoU at which the less confident object is removed; 1 keeps all.
    """
    selected: list[DetectedObject] = []
    for label in dict.fromkeys(candidate.label for candidate in objects):
        sure = sorted((f for f in objects if f.label == label and f.score > threshold), key=lambda f: -f.score)
        distinct: list[DetectedObject] = []
        for candidate in sure[:max_objects]:
            if max_overlap >= 1 or all(iou(candidate.box, other.box) < max_overlap for other in distinct):
                distinct.append(candidate)
        selected += distinct
    return selected


def relations(box: Box, other: Box, margin: float = 0.1) -> set[str]:
    """The positions of one box relative to another; two for a diagonal, none for boxes close to each other.

    The distance between the centers, along each axis, is shortened by ``margin`` times the sum of both edges there.
    The remainder, divided by the distance between the centers, must exceed 0.5.

    Source: Ghosh et al. 2023 (GenEval), arXiv:2310.11513, sec. 3 and its evaluation code.
    """
    offsets = [
        (box.left + box.right - other.left - other.right) / 2,
        (box.top + box.bottom - other.top - other.bottom) / 2,
    ]
    edges = [
        abs(box.right - box.left) + abs(other.right - other.left),
        abs(box.bottom - box.top) + abs(other.bottom - other.top),
    ]
    left = [max(abs(o) - margin * e, 0) * (1 if o > 0 else -1) for o, e in zip(offsets, edges, strict=True)]
    distance = sum(o * o for o in offsets) ** 0.5
    if all(abs(value) < 1e-3 for value in left):
        return set()
    dx, dy = (value / distance for value in left)
    holds_by_name = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return {name for name, holds in holds_by_name.items() if holds}


def evaluate_clauses(
    objects: Sequence[DetectedObject],
    include: Sequence[Clause],
    exclude: Sequence[Clause],
    attributes: Attributes,
    *,
    margin: float = 0.1,
) -> ClauseResults:
    """Evaluate clauses. Objects are sorted by confidence; of each class only the required number is considered.

    Source: GenEval's evaluation code: enough objects of the class; then each with its attribute; then each at its
    position relative to each object of the target clause, which must be satisfied; an excluded class must have fewer
    than its count.
    """
    satisfied: list[bool] = []
    reasons: list[str] = []
    groups: list[list[DetectedObject] | None] = []
    for clause in include:
        group = [detection for detection in objects if detection.label == clause.label][: clause.count]
        wrong = _clause_error(group, clause, groups, attributes, margin)
        satisfied.append(wrong is None)
        groups.append(group if wrong is None else None)
        reasons += [] if wrong is None else [wrong]
    for clause in exclude:
        number = sum(detection.label == clause.label for detection in objects)
        satisfied.append(number < clause.count)
        reasons += [] if satisfied[-1] else [f"expected fewer than {clause.count} {clause.label}, found {number}"]
    return ClauseResults(satisfied=tuple(satisfied), reasons=tuple(reasons))


def _clause_error(
    group: Sequence[DetectedObject],
    clause: Clause,
    groups: Sequence[list[DetectedObject] | None],
    attributes: Attributes,
    margin: float,
) -> str | None:
    """The error of a clause; None if it is satisfied."""
    if len(group) < clause.count:
        return f"expected {clause.count} {clause.label}, found {len(group)}"
    if clause.attribute is not None:
        attribute_values = attributes(group, clause)
        if any(value != clause.attribute for value in attribute_values):
            return f"expected {clause.attribute} {clause.label}, found {', '.join(attribute_values)}"
    if clause.relation is not None:
        target = groups[clause.target]
        if target is None:
            return f"nothing for {clause.label} to be {clause.relation}"
        for detection in group:
            for other in target:
                where = relations(detection.box, other.box, margin)
                if clause.relation not in where:
                    direction = " and ".join(sorted(where)) or "no clear direction"
                    return f"expected {clause.label} {clause.relation} {other.label}, found it {direction}"
    return None
