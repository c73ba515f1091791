"""Reward for a path of points over an image, such as a robot trajectory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample, Score

from ..parsing.boxes import FrameName, Point, normalized_frame
from ..parsing.coordinate_frames import Declared, coordinates_from
from ..parsing.coordinates import parse_points
from ..parsing.explanations import paths_explanation
from ..parsing.extraction import Extract, extract_answer, require_extract
from ..parsing.reference_values import find_reference_error, read_references

MAX_POINTS = 200

Coordinate: TypeAlias = "tuple[float, float]"


@final
class Trajectory:
    """Reward: similarity of the path in the answer to the reference path, by the discrete Fréchet distance.

    1 - d / D, at least 0. d is the minimum over monotone traversals of both paths of the maximum cost of a pair of
    points: their distance in units of image width and height, plus ``angle`` times the angle between the directions,
    plus ``ratio`` times |log| of the ratio of the step lengths. D = sqrt(2) + angle pi + ratio log 10 is the maximum
    distance. With both at 0, the default, d is the plain distance and D the diagonal of the image.

    Parsed are lists of points as in ``point_in_box``, also for the reference, in ``column``.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``.
    Range: 0 to 1.   Units: as declared; distances in image sides, angles in radians.
    Source: discrete Fréchet distance: Eiter and Mannila 1994; with angle 0.25 and ratio 0.1: VLA-R1, arXiv:2510.01623.
    Traps: points outside the image are clipped to its edge; a single point has no direction and no angle cost. No
    point, or more than 200, scores 0.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        angle: float = 0.0,
        ratio: float = 0.0,
        extract: Extract = "none",
    ) -> None:
        if not (angle >= 0 and ratio >= 0):
            raise ConfigError(f"Trajectory.angle and Trajectory.ratio must be at least 0, got {angle} and {ratio}")
        self.column = column
        self._coordinates = coordinates_from("Trajectory", coordinates)
        self._angle = angle
        self._ratio = ratio
        self._extract: Extract = require_extract("Trajectory.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("trajectory", samples, self.column, _path)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _path, "a list of points")

    def _score(self, sample: Sample, reference: Sequence[Coordinate]) -> Score:
        stated = parse_points(extract_answer(sample.text or "", self._extract) or "")
        reference_path = self._points(sample.prompt, reference, self._coordinates.reference_frame)
        if not 0 < len(stated) <= MAX_POINTS:
            reason = f"{len(stated)} points, more than {MAX_POINTS}" if stated else "no point"
            return Score(0.0, paths_explanation([], reference_path) | {"reason": reason})
        path = self._points(sample.prompt, stated, self._coordinates.frame)
        most = math.sqrt(2) + self._angle * math.pi + self._ratio * math.log(10)
        distance = frechet(_places(path), _places(reference_path), angle=self._angle, ratio=self._ratio)
        return Score(
            max(0.0, 1 - distance / most), paths_explanation(path, reference_path) | {"parts": {"distance": distance}}
        )

    def _points(self, prompt: Prompt, path: Sequence[Coordinate], frame: FrameName) -> list[Point]:
        """A path in units of image sides, clipped to the image."""
        source, unit = self._coordinates.sized(frame, prompt), normalized_frame("norm1")
        points = [Point(x, y, source).to(unit) for x, y in path]
        return [Point(min(max(point.x, 0.0), 1.0), min(max(point.y, 0.0), 1.0), unit) for point in points]


def frechet(
    path: Sequence[Coordinate], other: Sequence[Coordinate], *, angle: float = 0.0, ratio: float = 0.0
) -> float:
    """Discrete Fréchet distance of two paths, with costs for differing directions and steps; see ``Trajectory``.

    Args:
        path: points in order, at least one.
        other: the same.
        angle: weight of the angle between the directions, in radians.
        ratio: weight of the logarithm of the ratio of the steps.

    Returns:
        The distance, at least 0.
    """
    steps, others = [_step(path, at) for at in range(len(path))], [_step(other, at) for at in range(len(other))]
    before: list[float] = []
    for point, (turn, size) in zip(path, steps, strict=True):
        row: list[float] = []
        for at, (other_point, (its_turn, its_size)) in enumerate(zip(other, others, strict=True)):
            cost = math.dist(point, other_point) + angle * _between(turn, its_turn)
            cost += ratio * abs(math.log((size + _TINY) / (its_size + _TINY)))
            came = [*row[-1:], *before[at : at + 1], *(before[at - 1 : at] if at else [])]
            row.append(max(cost, min(came, default=0.0)))
        before = row
    return before[-1]


_TINY = 1e-12


def _step(path: Sequence[Coordinate], at: int) -> tuple[Coordinate, float]:
    """The direction of a path at a point, (0, 0) if undefined, and the length of the adjacent step."""
    ways = [_way(path[i], path[i + 1]) for i in (at - 1, at) if 0 <= i < len(path) - 1]
    units = [(x / size, y / size) if (size := math.hypot(x, y)) else (0.0, 0.0) for x, y in ways]
    x, y = (sum(sides) for sides in zip(*units, strict=True)) if units else (0.0, 0.0)
    size = math.hypot(x, y)
    turn = (x / size, y / size) if size > _TINY else units[0] if units else (0.0, 0.0)
    return turn, math.hypot(*ways[-1]) if ways else 0.0


def _way(start: Coordinate, end: Coordinate) -> Coordinate:
    return end[0] - start[0], end[1] - start[1]


def _between(direction: Coordinate, other: Coordinate) -> float:
    """The angle between two directions, 0 if one is undefined."""
    if direction == (0.0, 0.0) or other == (0.0, 0.0):
        return 0.0
    return math.acos(min(max(direction[0] * other[0] + direction[1] * other[1], -1.0), 1.0))


def _path(value: Any) -> list[Coordinate] | None:
    points = parse_points(value if isinstance(value, str) else str(value))
    return points if 0 < len(points) <= MAX_POINTS else None


def _places(points: Sequence[Point]) -> list[Coordinate]:
    return [(point.x, point.y) for point in points]
