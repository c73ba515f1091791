"""Average precision of the boxes in one image, with a penalty for too many boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.boxes import Box, iou
from ..parsing.coordinate_frames import Declared, coordinates_from
from ..parsing.coordinates import StatedBox, parse_boxes
from ..parsing.explanations import boxes_explanation, rounded, too_many_boxes
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract, require_fraction
from ..parsing.reference_values import find_reference_error, read_references

Confidence = Literal["equal", "stated"]

COCO_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
RECALLS = np.linspace(0, 1, 101)

# K reference boxes, N stated boxes, both of one class


@final
class AveragePrecision:
    """Reward: COCO average precision of the boxes in the answer, times a penalty for too many boxes.

    mean over the classes of the reference and over the IoU thresholds 0.5, 0.55, .., 0.95 of the precision,
    interpolated at 101 recalls, times min(1, reference boxes / stated boxes) ** ``length_power``. ``threshold: 0.5``
    uses only that threshold (AP50). Boxes are matched greedily in order of confidence, each with the unmatched
    reference of the highest IoU. For an empty reference: 1 for no box, else 0.

    ``confidence: equal`` gives all boxes the same score, ``stated`` reads the ``score`` of each box (default 1). Boxes
        of equal score are one point of the curve, so their order does not matter; COCO evaluates them in order, which
        never gives a lower value. Classes are labels, as in ``detection``; without ``labels``, or if a reference box
        has none, there is one class. Boxes are parsed and converted as in ``box_iou``.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``; ``max_boxes``: answers with more boxes score 0.
    Range: 0 to 1.
    Source: COCO's evaluation (pycocotools), and Shen et al. 2025 (VLM-R1), arXiv:2504.07615, ``odLength`` in
    grpo_jsonl.py for the penalty. Deviation: equal scores are one point; VLM-R1's AP depends on their order.
    Traps: with ``length_power: 0`` boxes of absent classes cost nothing, and with ``stated`` scores neither does any
    box after the last hit: VLM-R1 observed policies that list many. A single IoU threshold gives no signal below it.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        threshold: float | None = None,
        confidence: Confidence = "equal",
        labels: bool = True,
        length_power: float = 1.0,
        max_boxes: int = 100,
        extract: Extract = "none",
    ) -> None:
        owner = "AveragePrecision"
        if not length_power >= 0 or max_boxes < 1:
            raise ConfigError(f"{owner} needs length_power >= 0 and max_boxes >= 1, got {length_power}, {max_boxes}")
        self.column = column
        self._coordinates = coordinates_from(owner, coordinates)
        self._thresholds = (
            COCO_THRESHOLDS if threshold is None else (require_fraction(f"{owner}.threshold", threshold),)
        )
        self._confidence: Confidence = require_choice(f"{owner}.confidence", confidence, Confidence)
        self._labels = labels
        self._length_power = length_power
        self._max_boxes = max_boxes
        self._extract: Extract = require_extract(f"{owner}.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("average_precision", samples, self.column, self._coordinates.reference_list)
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
        explanation = boxes_explanation(boxes, reference_boxes, labels=[box.label for box in stated])
        if not references or not stated:
            return Score(float(not references and not stated), explanation)
        precision = self._mean_precision(stated, boxes, references, reference_boxes)
        parts = {"precision": precision, "length": min(1.0, len(references) / len(stated)) ** self._length_power}
        return Score(precision * parts["length"], explanation | {"parts": rounded(parts)})

    def _mean_precision(
        self,
        stated: Sequence[StatedBox],
        boxes: Sequence[Box],
        references: Sequence[StatedBox],
        reference_boxes: Sequence[Box],
    ) -> float:
        labeled = self._labels and all(box.label is not None for box in references)
        sure = [1.0 if self._confidence == "equal" or box.score is None else box.score for box in stated]
        classes = sorted({box.label or "" for box in references}) if labeled else [None]
        precisions = []
        for label in classes:
            rows = [i for i, box in enumerate(stated) if label is None or box.label == label]
            columns = [j for j, box in enumerate(references) if label is None or box.label == label]
            precisions.append(
                self._precision(
                    [boxes[i] for i in rows], [sure[i] for i in rows], [reference_boxes[j] for j in columns]
                )
            )
        return float(np.mean(precisions))

    def _precision(self, boxes: Sequence[Box], sure: Sequence[float], references: Sequence[Box]) -> float:
        """Average precision of one class, averaged over the thresholds."""
        if not boxes:
            return 0.0
        references = sorted(references, key=_edges)
        overlap_NK = np.array([[iou(box, other) for other in references] for box in boxes])
        order = sorted(range(len(boxes)), key=lambda i: (-sure[i], -overlap_NK[i].max(), _edges(boxes[i])))
        sure_N = np.array(sure)[order]
        ends_N = np.append(sure_N[1:] != sure_N[:-1], True)
        return float(np.mean([_at_threshold(overlap_NK[order], ends_N, t) for t in self._thresholds]))


def _at_threshold(overlap_NK: np.ndarray, ends_N: np.ndarray, threshold: float) -> float:
    """Interpolated average precision of ordered boxes; boxes of equal score form one point of the curve."""
    hit_N = _hits(overlap_NK, threshold)
    true_N = np.cumsum(hit_N)[ends_N]
    precision_N = true_N / (np.flatnonzero(ends_N) + 1)
    best_N = np.maximum.accumulate(precision_N[::-1])[::-1]
    reached = np.searchsorted(true_N / overlap_NK.shape[1], RECALLS, side="left")
    return float(np.append(best_N, 0.0)[reached].mean())


def _hits(overlap_NK: np.ndarray, threshold: float) -> np.ndarray:
    """(N,) bool, whether each box matches an unmatched reference."""
    free_K = np.ones(overlap_NK.shape[1], dtype=bool)
    hit_N = np.zeros(len(overlap_NK), dtype=bool)
    for row, overlap_K in enumerate(overlap_NK):
        best = int(np.where(free_K, overlap_K, -1.0).argmax())
        hit_N[row] = free_K[best] and overlap_K[best] > 0 and overlap_K[best] >= threshold
        free_K[best] &= not hit_N[row]
    return hit_N


def _edges(box: Box) -> tuple[float, float, float, float]:
    return box.left, box.top, box.right, box.bottom
