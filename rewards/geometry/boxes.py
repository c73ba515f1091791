"""Boxes, points and spans in a declared coordinate space.

A space is a rectangle with its origin at the top left; coordinates are continuous (a picture W pixels wide reaches from
0 to W, no pixel is added or taken off), so two spaces of one picture differ by a scale along each axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mmgrpo.errors import DataError

SpaceName = Literal["original", "resized", "norm1000", "norm1"]
Layout = Literal["xyxy", "xywh", "yxyx"]

NORMALISED: Mapping[str, float] = {"norm1000": 1000.0, "norm1": 1.0}


@dataclass(frozen=True, slots=True)
class Space:
    """A coordinate space of one picture.

    Attributes:
        name: ``original`` pixels, ``resized`` pixels (what the processor made of it), ``norm1000`` or ``norm1``.
        width: the x coordinate of the right edge; None if it is not known, and then nothing can be converted.
        height: the y coordinate of the lower edge.
    """

    name: SpaceName
    width: float | None = None
    height: float | None = None

    def __post_init__(self) -> None:
        edges = (self.width, self.height)
        if any(edge is not None and not edge > 0 for edge in edges):
            raise DataError(f"width and height of a space must be positive, got {edges} for '{self.name}'")


def normalised_space(name: Literal["norm1000", "norm1"]) -> Space:
    """The space 0 to 1000, or 0 to 1, along both axes."""
    return Space(name, NORMALISED[name], NORMALISED[name])


@dataclass(frozen=True, slots=True)
class Point:
    """A point in a space."""

    x: float
    y: float
    space: Space

    def to(self, space: Space) -> Point:
        """The same point of the picture in another space of it."""
        if space == self.space:
            return self
        return Point(*_converted((self.x, self.y), self.space, space), space)


@dataclass(frozen=True, slots=True)
class Box:
    """A box in a space, by its edges; empty if right is not beyond left or bottom not below top."""

    left: float
    top: float
    right: float
    bottom: float
    space: Space

    @property
    def area(self) -> float:
        """0 for an empty box."""
        return max(self.right - self.left, 0.0) * max(self.bottom - self.top, 0.0)

    @property
    def empty(self) -> bool:
        """Whether it holds nothing, as a box with swapped corners does."""
        return self.right <= self.left or self.bottom <= self.top

    def to(self, space: Space) -> Box:
        """The same box of the picture in another space of it."""
        if space == self.space:
            return self
        corners = ((self.left, self.top), (self.right, self.bottom))
        (left, top), (right, bottom) = (_converted(corner, self.space, space) for corner in corners)
        return Box(left, top, right, bottom, space)

    def holds(self, point: Point) -> bool:
        """Whether a point of the same space lies in it, edges included."""
        _same(self.space, point.space)
        return not self.empty and self.left <= point.x <= self.right and self.top <= point.y <= self.bottom


def box_of(numbers: Sequence[float], layout: Layout, space: Space) -> Box:
    """The box that four numbers stand for: corners, left top width height, or corners with y first (Gemini)."""
    a, b, c, d = numbers
    if layout == "xywh":
        return Box(a, b, a + c, b + d, space)
    return Box(b, a, d, c, space) if layout == "yxyx" else Box(a, b, c, d, space)


def iou(box: Box, other: Box) -> float:
    """Area of the intersection over area of the union, 0 to 1; 0 if either is empty. Both in one space."""
    _same(box.space, other.space)
    if box.empty or other.empty:
        return 0.0
    shared = _intersection(box, other)
    return shared / (box.area + other.area - shared)


def giou(box: Box, other: Box) -> float:
    """IoU less the share of the enclosing box that neither covers, in (-1, 1]; -1 if either is empty.

    Source: Rezatofighi et al. 2019, arXiv:1902.09630, algorithm 1.
    """
    _same(box.space, other.space)
    if box.empty or other.empty:
        return -1.0
    shared = _intersection(box, other)
    union = box.area + other.area - shared
    hull = (max(box.right, other.right) - min(box.left, other.left)) * (
        max(box.bottom, other.bottom) - min(box.top, other.top)
    )
    return shared / union - (hull - union) / hull


def _converted(corner: tuple[float, float], source: Space, target: Space) -> tuple[float, float]:
    if source.width is None or source.height is None or target.width is None or target.height is None:
        raise DataError(f"cannot convert from '{source.name}' to '{target.name}' without the sizes of both")
    return corner[0] * target.width / source.width, corner[1] * target.height / source.height


def _same(space: Space, other: Space) -> None:
    if space != other:
        raise DataError(f"coordinates of two spaces cannot be compared: {space} and {other}; convert one with to()")


def _intersection(box: Box, other: Box) -> float:
    width = min(box.right, other.right) - max(box.left, other.left)
    height = min(box.bottom, other.bottom) - max(box.top, other.top)
    return max(width, 0.0) * max(height, 0.0)
