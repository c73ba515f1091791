"""Boxes, points and spans in a declared coordinate frame.

A frame is a rectangle with its origin at the top left. Coordinates are continuous: an image of width W spans 0 to W,
without the +1 of pixel counts. Two frames of one image differ by a scale along each axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mmgrpo.errors import DataError

FrameName = Literal["original", "resized", "norm1000", "norm1"]
Layout = Literal["xyxy", "xywh", "yxyx"]

NORMALIZED_FRAMES: Mapping[str, float] = {"norm1000": 1000.0, "norm1": 1.0}


@dataclass(frozen=True, slots=True)
class CoordinateFrame:
    """A coordinate frame of one image.

    Attributes:
        name: ``original`` pixels, ``resized`` pixels (after the processor), ``norm1000`` or ``norm1``.
        width: the x coordinate of the right edge; None if unknown, then coordinates cannot be converted.
        height: the y coordinate of the lower edge.
    """

    name: FrameName
    width: float | None = None
    height: float | None = None

    def __post_init__(self) -> None:
        edges = (self.width, self.height)
        if any(edge is not None and not edge > 0 for edge in edges):
            raise DataError(f"width and height of a frame must be positive, got {edges} for '{self.name}'")


def normalized_frame(name: Literal["norm1000", "norm1"]) -> CoordinateFrame:
    """The frame 0 to 1000, or 0 to 1, along both axes."""
    return CoordinateFrame(name, NORMALIZED_FRAMES[name], NORMALIZED_FRAMES[name])


@dataclass(frozen=True, slots=True)
class Point:
    """A point in a frame."""

    x: float
    y: float
    frame: CoordinateFrame

    def to(self, frame: CoordinateFrame) -> Point:
        """The same point in another frame of the image."""
        if frame == self.frame:
            return self
        return Point(*_converted((self.x, self.y), self.frame, frame), frame)


@dataclass(frozen=True, slots=True)
class Box:
    """A box in a frame, by its edges; empty unless left < right and top < bottom."""

    left: float
    top: float
    right: float
    bottom: float
    frame: CoordinateFrame

    @property
    def area(self) -> float:
        """0 for an empty box."""
        return max(self.right - self.left, 0.0) * max(self.bottom - self.top, 0.0)

    @property
    def empty(self) -> bool:
        """Whether the area is zero, as of a box with swapped corners."""
        return self.right <= self.left or self.bottom <= self.top

    def to(self, frame: CoordinateFrame) -> Box:
        """The same box in another frame of the image."""
        if frame == self.frame:
            return self
        corners = ((self.left, self.top), (self.right, self.bottom))
        (left, top), (right, bottom) = (_converted(corner, self.frame, frame) for corner in corners)
        return Box(left, top, right, bottom, frame)

    def holds(self, point: Point) -> bool:
        """Whether it contains a point of the same frame, edges included."""
        _same(self.frame, point.frame)
        return not self.empty and self.left <= point.x <= self.right and self.top <= point.y <= self.bottom


def box_of(numbers: Sequence[float], layout: Layout, frame: CoordinateFrame) -> Box:
    """The box of four numbers in a layout: corners, left top width height, or corners with y first (Gemini)."""
    a, b, c, d = numbers
    if layout == "xywh":
        return Box(a, b, a + c, b + d, frame)
    return Box(b, a, d, c, frame) if layout == "yxyx" else Box(a, b, c, d, frame)


def iou(box: Box, other: Box) -> float:
    """Area of the intersection over area of the union, 0 to 1; 0 if either is empty. Both in one frame."""
    _same(box.frame, other.frame)
    if box.empty or other.empty:
        return 0.0
    shared = _intersection(box, other)
    return shared / (box.area + other.area - shared)


def giou(box: Box, other: Box) -> float:
    """IoU minus the fraction of the enclosing box that neither covers, in (-1, 1]; -1 if either is empty.

    Source: Rezatofighi et al. 2019, arXiv:1902.09630, algorithm 1.
    """
    _same(box.frame, other.frame)
    if box.empty or other.empty:
        return -1.0
    shared = _intersection(box, other)
    union = box.area + other.area - shared
    hull = (max(box.right, other.right) - min(box.left, other.left)) * (
        max(box.bottom, other.bottom) - min(box.top, other.top)
    )
    return shared / union - (hull - union) / hull


def _converted(corner: tuple[float, float], source: CoordinateFrame, target: CoordinateFrame) -> tuple[float, float]:
    if source.width is None or source.height is None or target.width is None or target.height is None:
        raise DataError(f"cannot convert from '{source.name}' to '{target.name}' without the sizes of both")
    return corner[0] * target.width / source.width, corner[1] * target.height / source.height


def _same(frame: CoordinateFrame, other: CoordinateFrame) -> None:
    if frame != other:
        raise DataError(f"coordinates of two frames cannot be compared: {frame} and {other}; convert one with to()")


def _intersection(box: Box, other: Box) -> float:
    width = min(box.right, other.right) - max(box.left, other.left)
    height = min(box.bottom, other.bottom) - max(box.top, other.top)
    return max(width, 0.0) * max(height, 0.0)
