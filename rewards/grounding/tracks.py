"""Reward for object tracking in videos: a box at each moment, and the time span of the object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.boxes import iou
from ..parsing.coordinate_frames import Declared, coordinates_from
from ..parsing.coordinates import StatedBox, pair, parse_boxes, span_iou
from ..parsing.explanations import MAX_SHAPES, rounded, spans_explanation
from ..parsing.extraction import (
    Extract,
    extract_answer,
    finite,
    json_values,
    require_choice,
    require_extract,
    require_fraction,
)
from ..parsing.numerals import seconds
from ..parsing.reference_values import find_reference_error, read_references

Over = Literal["reference", "shared", "union"]

MAX_MOMENTS = 2_000
_SAME = 1e-6

_MOMENT_KEYS = ("frame", "frame_id", "frame_index", "timestamp", "t", "time")
_SPAN_KEYS = ("time", "span", "temporal", "time_span", "interval")


@dataclass(frozen=True, slots=True)
class _Track:
    """Boxes by moment, with an optional time span."""

    boxes: Mapping[float, StatedBox]
    span: tuple[float, float] | None = None


@final
class Tracking:
    """Reward: mean overlap of the boxes at each moment with the reference, combined with the overlap of the time spans.

    (1 - ``temporal``) * mean IoU + ``temporal`` * IoU of the time spans. The mean is taken ``over`` the moments of the
    ``reference`` (missing moments count 0), over the ``shared`` moments, or over the ``union`` of both (additional
    boxes count 0). If the reference has no span, the score is the mean IoU; if only the answer has none, its overlap is
    0.

    Parsed are ``{"time": [start, end], "boxes": {"3": [x1, y1, x2, y2], ..}}`` and lists of ``{"frame": 3, "bbox_2d":
    [..]}``; moments are frame numbers or times (``0:12``, ``2 s``), in the units of the reference, and match within
    ``tolerance``, nearest first. The reference, in ``column``, has the same form.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``; ``max_moments``: answers with more boxes score 0.
    Range: 0 to 1.   Units: ``tolerance`` in units of the moments.
    Source: OneThinker, arXiv:2512.03043, onethinker_reward.py: tracking (over the reference's frames, no span) and
    spatio-temporal grounding (0.5 and 0.5; there over the shared frames). Deviation: ``reference`` is the default.
    Traps: over ``shared`` moments a policy learns to state only its most certain box; over ``reference`` moments boxes
    at other moments cost nothing. Frame numbers refer to the frames that the model receives, not to the file.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        temporal: float = 0.5,
        over: Over = "reference",
        tolerance: float = 0.0,
        max_moments: int = 500,
        extract: Extract = "none",
    ) -> None:
        if not tolerance >= 0 or not 1 <= max_moments <= MAX_MOMENTS:
            raise ConfigError(
                f"Tracking needs tolerance >= 0 and max_moments in 1 .. {MAX_MOMENTS}, got {tolerance}, {max_moments}"
            )
        self.column = column
        self._coordinates = coordinates_from("Tracking", coordinates)
        self._temporal = require_fraction("Tracking.temporal", temporal)
        self._over: Over = require_choice("Tracking.over", over, Over)
        self._tolerance = tolerance + _SAME
        self._max_moments = max_moments
        self._extract: Extract = require_extract("Tracking.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("tracking", samples, self.column, self._reference)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(
            value, self._reference, "boxes with an area at moments, and a span that ends after it begins"
        )

    def _reference(self, value: Any) -> _Track | None:
        track = parse_track(value)
        boxes = track.boxes.values()
        if not 0 < len(boxes) <= MAX_MOMENTS or not all(map(self._coordinates.with_area, boxes)):
            return None
        return track if track.span is None or track.span[1] > track.span[0] else None

    def _score(self, sample: Sample, reference: _Track) -> Score:
        stated = parse_track(extract_answer(sample.text or "", self._extract) or "")
        if len(stated.boxes) > self._max_moments:
            return Score(0.0, {"reason": f"{len(stated.boxes)} boxes, more than {self._max_moments}"})
        matches = self._met(stated, reference)
        matched_boxes = [stated.boxes[s] for s in matches.values()], [reference.boxes[w] for w in matches]
        boxes, reference_boxes = self._coordinates.boxes(sample.prompt, *matched_boxes)
        overlaps = dict.fromkeys(reference.boxes, 0.0) | dict(
            zip(matches, map(iou, boxes, reference_boxes), strict=True)
        )
        counted = {"reference": len(reference.boxes), "shared": len(matches), "union": len(reference.boxes)}[self._over]
        counted += len(stated.boxes) - len(matches) if self._over == "union" else 0
        spatial = sum(overlaps.values()) / counted if counted else 0.0
        explanation: dict[str, Any] = {"parsed": f"boxes at {len(matches)} of {len(reference.boxes)} moments"}
        explanation["overlaps"] = [[moment, round(value, 4)] for moment, value in sorted(overlaps.items())[:MAX_SHAPES]]
        if reference.span is None:
            return Score(spatial, explanation)
        shared = 0.0 if stated.span is None else span_iou(stated.span, reference.span)
        explanation |= spans_explanation([] if stated.span is None else [stated.span], reference.span)
        explanation["parts"] = rounded({"boxes": spatial, "span": shared})
        return Score((1 - self._temporal) * spatial + self._temporal * shared, explanation)

    def _met(self, stated: _Track, reference: _Track) -> dict[float, float]:
        """Match moments of the reference to stated moments one to one, nearest pairs first."""
        reference_moments, stated_moments = sorted(reference.boxes), sorted(stated.boxes)
        near = sorted(
            (abs(w - s), w, s) for w in reference_moments for s in stated_moments if abs(w - s) <= self._tolerance
        )
        matches: dict[float, float] = {}
        taken: set[float] = set()
        for _, moment, other in near:
            if moment not in matches and other not in taken:
                matches[moment] = other
                taken.add(other)
        return matches


def parse_track(source: Any) -> _Track:
    """Parse the boxes by moment in a text, or in the value of a data row; the last box of a moment is used.

    Args:
        source: text with JSON, or a decoded JSON value.

    Returns:
        The track, with at most ``MAX_MOMENTS`` + 1 boxes; empty if there are none.
    """
    values = json_values(source) if isinstance(source, str) else [source]
    boxes: dict[float, StatedBox] = {}
    for moment, box in _moments(values, 0):
        boxes[moment] = box
        if len(boxes) > MAX_MOMENTS:
            break
    spans = [span for span in map(_span, values) if span is not None]
    return _Track(boxes, spans[0] if spans else None)


def _moments(value: Any, depth: int) -> Iterator[tuple[float, StatedBox]]:
    """Moment and box, where a number or time is the key of a box, or is in the same object."""
    if depth > 8:
        return
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _moments(inner, depth + 1)
    elif isinstance(value, Mapping):
        moment_value = next((_moment(value[key]) for key in _MOMENT_KEYS if key in value), None)
        boxes = parse_boxes(value) if moment_value is not None else []
        if moment_value is not None and len(boxes) == 1:
            yield moment_value, boxes[0]
            return
        for key, inner in value.items():
            moment = _moment(key)
            box_list = parse_boxes(inner) if moment is not None else []
            if moment is not None and len(box_list) == 1:
                yield moment, box_list[0]
            else:
                yield from _moments(inner, depth + 1)


def _moment(value: Any) -> float | None:
    """A frame number or time, as a number or a text with exactly one."""
    if not isinstance(value, str):
        return finite(value)
    stated = seconds(value.replace("_", " ")) if len(value) <= 40 else []
    return stated[0] if len(stated) == 1 else None


def _span(value: Any) -> tuple[float, float] | None:
    """The span in the same object as the boxes."""
    if not isinstance(value, Mapping):
        return None
    span_value = next((value[key] for key in _SPAN_KEYS if isinstance(value.get(key), list | tuple | Mapping)), value)
    if isinstance(span_value, list | tuple) and len(span_value) == 2:
        ends = [_moment(end) for end in span_value]
        return (ends[0], ends[1]) if ends[0] is not None and ends[1] is not None else None
    return pair(span_value)
