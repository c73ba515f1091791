"""Rewards for localization: one box, a set of boxes, a point, a time span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np

from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required
from mmgrpo.types import Sample, Score

from ..parsing.boxes import Box, giou, iou
from ..parsing.coordinate_frames import Declared, coordinates_from
from ..parsing.coordinates import (
    StatedBox,
    pair,
    parse_boxes,
    parse_points,
    parse_spans,
    span_iou,
)
from ..parsing.explanations import boxes_explanation, points_explanation, rounded, spans_explanation, too_many_boxes
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract, require_fraction
from ..parsing.reference_values import find_reference_error, read_references, score_against_reference

BoxMode = Literal["iou", "giou", "threshold"]
TimeUnit = Literal["seconds", "frames"]


@final
class BoxIou:
    """Reward: overlap of the box in the answer with the reference box.

    ``mode: iou`` is the intersection over union, ``giou`` the generalized IoU, which also distinguishes disjoint boxes,
        ``threshold`` 1 for an IoU of at least ``threshold``, else 0. No box, several boxes, or a swapped or empty box
        get the lowest score.

    Parsed are JSON (``[x1, y1, x2, y2]``, ``{"bbox_2d": [..]}``, ``{"x1": .., "y1": .., "x2": .., "y2": ..}``),
    ``(x1,y1),(x2,y2)``, and four bare numbers. A reference without an area is not scored.

    Settings: ``coordinates`` declares the frames and layouts of model and data, see "Coordinates"; ``extract`` as in
    ``exact_match``.
    Range: 0 to 1; ``giou`` from -1 to 1.   Units: as declared; edges are continuous, without the ``+1`` of pixel
    counts.
    Source: Rezatofighi et al. 2019, arXiv:1902.09630 (GIoU).
    Traps: a wrong coordinate frame is not detected, it only lowers the scores: check a few by hand. Ask for one box:
    several get the lowest score, so the policy cannot hedge.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        mode: BoxMode = "iou",
        threshold: float = 0.5,
        extract: Extract = "none",
    ) -> None:
        self.column = column
        self._coordinates = coordinates_from("BoxIou", coordinates)
        self._mode: BoxMode = require_choice("BoxIou.mode", mode, BoxMode)
        self._threshold = require_fraction("BoxIou.threshold", threshold)
        self._extract: Extract = require_extract("BoxIou.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("box_iou", samples, self.column, self._coordinates.single_reference)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._coordinates.single_reference, "exactly one box with an area")

    def _score(self, sample: Sample, reference: StatedBox) -> Score:
        stated = parse_boxes(extract_answer(sample.text or "", self._extract) or "")
        boxes, (target,) = self._coordinates.boxes(sample.prompt, stated, [reference])
        reason = _count_error("box", len(boxes)) or ("the box is empty" if boxes[0].empty else None)
        explanation = boxes_explanation(boxes, [target], pairs=[] if reason else [(0, 0, iou(boxes[0], target))])
        return Score(self._value(boxes, target), explanation | ({} if reason is None else {"reason": reason}))

    def _value(self, boxes: Sequence[Box], target: Box) -> float:
        if len(boxes) != 1:
            return -1.0 if self._mode == "giou" else 0.0
        if self._mode == "giou":
            return giou(boxes[0], target)
        return iou(boxes[0], target) if self._mode == "iou" else float(iou(boxes[0], target) >= self._threshold)


@final
class Detection:
    """Reward: overlap of the set of boxes in the answer with the reference set, matched one to one.

    sum over matched pairs of IoU / reference boxes * min(1, reference boxes / stated boxes) ** ``length_power``. The
    pairs are the Hungarian assignment with the highest sum; a pair counts if its IoU is at least ``threshold`` and, if
    the reference has labels and ``labels`` is true, the labels are equal; ``graded: false`` counts it as 1 instead of
    its IoU. For an empty reference: 1 for no box, else 0. The order of the boxes does not matter.

    Boxes are parsed and converted as in ``box_iou``; an entry may be ``{"bbox_2d": [..], "label": ".."}``. The
    reference, in ``column``, is a list of boxes or of such entries, or ``{"bbox": [[..], ..], "label": [..]}``.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``; ``max_boxes``: answers with more boxes score 0.
    Range: 0 to 1.
    Source: one-to-one matching: Liu et al. 2025 (VisionReasoner), arXiv:2505.12081, sec. 3.5; the length penalty
    against many boxes: Shen et al. 2025 (VLM-R1), arXiv:2504.07615, odLength. Deviation: the penalty is a ratio.
    Traps: with ``length_power: 0`` only misses cost, and a policy learns to list many boxes.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        threshold: float = 0.5,
        graded: bool = True,
        labels: bool = True,
        length_power: float = 1.0,
        max_boxes: int = 200,
        extract: Extract = "none",
    ) -> None:
        if not length_power >= 0 or max_boxes < 1:
            raise ConfigError(f"Detection needs length_power >= 0 and max_boxes >= 1, got {length_power}, {max_boxes}")
        self.column = column
        self._coordinates = coordinates_from("Detection", coordinates)
        self._threshold = require_fraction("Detection.threshold", threshold)
        self._graded = graded
        self._labels = labels
        self._length_power = length_power
        self._max_boxes = max_boxes
        self._extract: Extract = require_extract("Detection.extract", extract)
        self._assigned = required("scipy.optimize", "reward detection").linear_sum_assignment

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("detection", samples, self.column, self._coordinates.reference_list)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(
            value, self._coordinates.reference_list, "a list of boxes with an area, or an empty list"
        )

    def _score(self, sample: Sample, references: list[StatedBox]) -> Score:
        stated = parse_boxes(extract_answer(sample.text or "", self._extract) or "")
        if len(stated) > self._max_boxes:
            return Score(0.0, too_many_boxes(len(stated), self._max_boxes))
        boxes, reference_boxes = self._coordinates.boxes(sample.prompt, stated, references)
        pairs = self._pairs(boxes, stated, reference_boxes, references) if boxes and reference_boxes else []
        explanation = boxes_explanation(boxes, reference_boxes, labels=[box.label for box in stated], pairs=pairs)
        if not references or not stated:
            return Score(float(not references and not stated), explanation)
        total = sum(overlap if self._graded else 1.0 for _, _, overlap in pairs)
        parts = {
            "overlap": total / len(references),
            "length": min(1.0, len(references) / len(stated)) ** self._length_power,
        }
        return Score(parts["overlap"] * parts["length"], explanation | {"parts": rounded(parts)})

    def _pairs(
        self,
        boxes: Sequence[Box],
        stated: Sequence[StatedBox],
        reference_boxes: Sequence[Box],
        references: Sequence[StatedBox],
    ) -> list[tuple[int, int, float]]:
        """Indices of stated and reference box of every pair that counts, with their overlap."""
        overlap = np.array([[iou(box, other) for other in reference_boxes] for box in boxes])
        gains = np.array(
            [
                [self._gain(overlap[i, j], box.label, reference.label) for j, reference in enumerate(references)]
                for i, box in enumerate(stated)
            ]
        )
        rows, columns = self._assigned(gains, maximize=True)
        best = zip(rows.tolist(), columns.tolist(), strict=True)
        return [(i, j, float(overlap[i, j])) for i, j in best if gains[i, j] > 0]

    def _gain(self, overlap: float, label: str | None, target: str | None) -> float:
        if overlap == 0 or overlap < self._threshold or (self._labels and target is not None and label != target):
            return 0.0
        return overlap if self._graded else 1.0


@final
class PointInBox:
    """Reward: 1 if the point in the answer is inside the reference box, edges included; else 0.

    For GUI grounding and pointing. Parsed are JSON (``[x, y]``, ``{"point_2d": [x, y]}``), ``(x, y)``, and two bare
    numbers; no point, or several, score 0. The reference box is as in ``box_iou``.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``.
    Range: 0 or 1.
    Source: Luo et al. 2025 (GUI-R1), arXiv:2504.10458. Deviation: the answer is parsed, never evaluated.
    Traps: boxes of a few pixels give no signal early in training.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        extract: Extract = "none",
    ) -> None:
        self.column = column
        self._coordinates = coordinates_from("PointInBox", coordinates)
        self._extract: Extract = require_extract("PointInBox.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("point_in_box", samples, self.column, self._coordinates.single_reference)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._coordinates.single_reference, "exactly one box with an area")

    def _score(self, sample: Sample, reference: StatedBox) -> Score:
        stated = parse_points(extract_answer(sample.text or "", self._extract) or "")
        _, (target,) = self._coordinates.boxes(sample.prompt, [], [reference])
        points, reason = self._coordinates.points(sample.prompt, stated), _count_error("point", len(stated))
        explanation = points_explanation(points, target) | ({} if reason is None else {"reason": reason})
        return Score(float(len(points) == 1 and target.holds(points[0])), explanation)


@final
class TemporalIou:
    """Reward: intersection over union of the time span in the answer and the reference span.

    Parsed are JSON (``[start, end]``, ``{"start": .., "end": ..}``), clock times (``0:12 to 1:05``) and numbers; there
    must be exactly two, the end after the start, else 0. Use ``unit: frames`` if the model writes frame numbers, with
    ``fps`` frames per second. The reference, in ``column``, is [start, end] or a text of that form, in seconds.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.   Units: seconds; frames are divided by ``fps``.
    Source: the temporal IoU of video grounding, as in Video-R1, arXiv:2503.21776.
    Traps: ``fps`` is the rate of the frames that the model receives, not of the file.
    """

    def __init__(
        self, column: str = "answer", unit: TimeUnit = "seconds", fps: float | None = None, extract: Extract = "none"
    ) -> None:
        self.column = column
        self._extract: Extract = require_extract("TemporalIou.extract", extract)
        frames = require_choice("TemporalIou.unit", unit, TimeUnit) == "frames"
        if frames != (fps is not None) or (fps is not None and not fps > 0):
            raise ConfigError(f"TemporalIou needs a positive fps for unit: frames and none for seconds, got {fps}")
        self._fps = 1.0 if fps is None else fps

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("temporal_iou", samples, self.column, _span, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _span, "a start and an end, the end after the start")

    def _score(self, text: str, reference: tuple[float, float]) -> Score:
        stated = [
            (start / self._fps, end / self._fps)
            for start, end in parse_spans(extract_answer(text, self._extract) or "")
        ]
        explanation, reason = spans_explanation(stated, reference), _count_error("span", len(stated))
        if reason is None and stated[0][1] <= stated[0][0]:
            reason = "the span ends before it begins"
        if reason is not None:
            return Score(0.0, explanation | {"reason": reason})
        return Score(span_iou(stated[0], reference), explanation)


def _count_error(kind: str, count: int) -> str | None:
    """Why an answer with no item, or several, scores the minimum."""
    return None if count == 1 else f"no {kind}" if count == 0 else f"{kind} stated {count} times, not once"


def _span(value: Any) -> tuple[float, float] | None:
    span = pair(value) if not isinstance(value, str) else next(iter(parse_spans(value)), None)
    return span if span is not None and span[1] > span[0] else None
