"""Reward for segmentation: polygons, masks and boxes against a reference region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample, Score

from ..parsing.boxes import Box, CoordinateFrame, Layout, Point, box_of
from ..parsing.coordinate_frames import Declared, coordinates_from
from ..parsing.coordinates import StatedBox
from ..parsing.explanations import mask_entry, masks_explanation, rounded
from ..parsing.extraction import Extract, extract_answer, require_extract, require_fraction
from ..parsing.reference_values import find_reference_error, read_references
from ..parsing.regions import Polygon, RegionMask, Shape, parse_shapes, rasterize_polygon

Regions: TypeAlias = "Sequence[Polygon | RegionMask | None]"  # None for an empty box

MAX_RINGS = 24  # 4 ** 24 spans the smallest to the largest region that can be written


@final
class MaskIou:
    """Reward: intersection over union of the region in the answer and the reference region.

    Parsed are polygons (``[[x, y], ..]`` of at least three points, or COCO's flat lists of at least six numbers),
    COCO's run-length masks (``{"size": [h, w], "counts": ..}``, compressed or not), and boxes as in ``box_iou``; the
    region is their union. Regions are compared pixel by pixel: on the grid of the reference mask, if it is a mask,
    ignoring everything outside the image; else on ``grid`` x ``grid`` cells around the reference, surrounded by cells
    that grow with the distance.

    The reference, in ``column``, is a run-length mask, an image with nonzero pixels in the region, or polygons or boxes
    in the frame of the data. A mask defines the size of the image, unless there is a column ``original_size``. With
    ``threshold`` the score is 1 for an IoU of at least that, else 0.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``.
    Range: 0 to 1.   Units: as declared; a pixel counts by its center.
    Source: run-length masks: pycocotools, maskApi.c; mask IoU as a reward: Liu et al. 2025 (Seg-Zero),
    arXiv:2503.06520. Deviation: the region is written by the model, without a segmentation model in between.
    Traps: for thin objects even a well-placed box scores almost 0. Masks are limited to 16 million pixels, an answer to
    100 shapes and a polygon to 2,000 corners; a larger reference is not scored, a larger answer scores 0.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        threshold: float | None = None,
        grid: int = 512,
        extract: Extract = "none",
    ) -> None:
        if not 16 <= grid <= 4096:
            raise ConfigError(f"MaskIou.grid must be in 16 .. 4096, got {grid}")
        self.column = column
        self._coordinates = coordinates_from("MaskIou", coordinates)
        self._threshold = None if threshold is None else require_fraction("MaskIou.threshold", threshold)
        self._grid = grid
        self._extract: Extract = require_extract("MaskIou.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("mask_iou", samples, self.column, self._region)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(
            value, self._region, "regions with an area: masks of one size, or polygons and boxes"
        )

    def _region(self, value: Any) -> list[Shape] | None:
        """The reference: masks of one size, or polygons and boxes; None if they have no area."""
        shapes = parse_shapes(value) or []
        sizes = {shape.size if isinstance(shape, RegionMask) else None for shape in shapes}
        return shapes if len(sizes) == 1 and any(map(self._has_area, shapes)) else None

    def _has_area(self, shape: Shape) -> bool:
        if isinstance(shape, RegionMask):
            return bool(shape.grid_HW.any())
        return self._coordinates.with_area(shape) is not None if isinstance(shape, StatedBox) else True

    def _score(self, sample: Sample, reference: list[Shape]) -> Score:
        stated = parse_shapes(extract_answer(sample.text or "", self._extract) or "")
        if not stated:
            return Score(0.0, {"reason": "too many regions" if stated is None else "no region"})
        source, target = self._source_and_target(sample.prompt, reference)
        shapes = [_moved(shape, self._coordinates.layout, source, target) for shape in stated]
        reference_shapes = [_moved(shape, self._coordinates.reference_layout, target, target) for shape in reference]
        image_raster = (
            _Raster(0, 0, *reference_shapes[0].size, *reference_shapes[0].size, target)
            if isinstance(reference_shapes[0], RegionMask)
            else None
        )
        raster = image_raster or _around(reference_shapes, target, self._grid)
        value = _iou(shapes, reference_shapes, raster)
        masks = (
            (image_raster or _around(shapes, target, self._grid)).mask_explanation(shapes, "stated"),
            raster.mask_explanation(reference_shapes, "reference"),
        )
        explanation = {"parsed": _named(stated)} | masks_explanation(
            [mask for mask in masks if mask is not None], target
        )
        if self._threshold is None:
            return Score(value, explanation)
        return Score(float(value >= self._threshold), explanation | {"parts": rounded({"overlap": value})})

    def _source_and_target(self, prompt: Prompt, reference: Sequence[Shape]) -> tuple[CoordinateFrame, CoordinateFrame]:
        """The frame of the model, and the frame of the comparison: the image of the reference mask, or the frame of
        the reference.
        """
        coordinates = self._coordinates
        if not isinstance(reference[0], RegionMask):
            return coordinates.of_model(prompt), coordinates.of_reference(prompt)
        size = reference[0].size
        sized = replace(prompt, columns={coordinates.original_size: list(size), **prompt.columns})
        distinct = replace(coordinates, reference_frame="norm1000" if coordinates.frame == "norm1" else "norm1")
        return distinct.of_model(sized), CoordinateFrame("original", *size)


@dataclass(frozen=True, slots=True)
class _Raster:
    """A grid over a rectangle of a frame."""

    left: float
    top: float
    width: float
    height: float
    columns: int
    rows: int
    frame: CoordinateFrame

    @property
    def cell(self) -> float:
        """The area of one cell."""
        return self.width / self.columns * (self.height / self.rows)

    def covered(self, shapes: Regions) -> np.ndarray:
        """(rows, columns) bool: the union of the shapes."""
        grid_HW = np.zeros((self.rows, self.columns), dtype=bool)
        for shape in shapes:
            if isinstance(shape, Polygon):
                grid_HW |= rasterize_polygon(
                    [self._on_grid(*corner) for corner in shape.corners], self.columns, self.rows
                )
            elif shape is not None:
                grid_HW |= self._sampled(shape)
        return grid_HW

    def mask_explanation(self, shapes: Regions, role: str) -> dict[str, Any] | None:
        """The covered region for the explanation; None if it is empty."""
        grid_HW = self.covered(shapes)
        rows, columns = np.flatnonzero(grid_HW.any(1)), np.flatnonzero(grid_HW.any(0))
        if not len(rows):
            return None
        left, right = (self.left + self.width * edge / self.columns for edge in (columns[0], columns[-1] + 1))
        top, bottom = (self.top + self.height * edge / self.rows for edge in (rows[0], rows[-1] + 1))
        around = Box(float(left), float(top), float(right), float(bottom), self.frame)
        return mask_entry(grid_HW[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], around, role)

    def wider(self) -> _Raster:
        """A raster with as many cells (multiples of eight), of which this one is the middle quarter of each side."""
        left, top = self.left - 1.5 * self.width, self.top - 1.5 * self.height
        columns, rows = (count // 8 * 8 for count in (self.columns, self.rows))
        return _Raster(left, top, 4 * self.width, 4 * self.height, columns, rows, self.frame)

    def ring(self, shapes: Regions) -> float:
        """The area of the shapes outside the middle quarter of each side."""
        grid_HW = self.covered(shapes)
        grid_HW[3 * self.rows // 8 : 5 * self.rows // 8, 3 * self.columns // 8 : 5 * self.columns // 8] = False
        return np.count_nonzero(grid_HW) * self.cell

    def holds(self, other: _Raster) -> bool:
        """Whether it contains another raster."""
        across = self.left <= other.left and other.left + other.width <= self.left + self.width
        return across and self.top <= other.top and other.top + other.height <= self.top + self.height

    def _on_grid(self, x: float, y: float) -> tuple[float, float]:
        return (x - self.left) / self.width * self.columns, (y - self.top) / self.height * self.rows

    def _sampled(self, mask: RegionMask) -> np.ndarray:
        """Each cell takes the pixel of the mask at its center."""
        width, height = _extent(mask, self.frame)
        x = (self.left + (np.arange(self.columns) + 0.5) * self.width / self.columns) * mask.size[0] / width
        y = (self.top + (np.arange(self.rows) + 0.5) * self.height / self.rows) * mask.size[1] / height
        inside_HW = ((y >= 0) & (y < mask.size[1]))[:, None] & ((x >= 0) & (x < mask.size[0]))
        rows = np.clip(y, 0, mask.size[1] - 1).astype(int)
        return inside_HW & mask.grid_HW[rows][:, np.clip(x, 0, mask.size[0] - 1).astype(int)]


def _iou(shapes: Regions, reference: Regions, raster: _Raster) -> float:
    """Intersection over union, on the raster of the reference and, unless that is an image, on growing rings around it.

    With a single raster around both, a small distant shape would make the cells so coarse that any box would match.
    """
    stated_HW, reference_HW = raster.covered(shapes), raster.covered(reference)
    shared = np.count_nonzero(stated_HW & reference_HW) * raster.cell
    union = np.count_nonzero(stated_HW | reference_HW) * raster.cell
    reach = raster if isinstance(reference[0], RegionMask) else _around(shapes, raster.frame, raster.rows)
    for _ in range(MAX_RINGS):
        if raster.holds(reach):
            break
        raster = raster.wider()
        union += raster.ring(shapes)
    return float(shared / union) if union else 0.0


def _around(shapes: Regions, frame: CoordinateFrame, cells: int) -> _Raster:
    """A grid around all shapes, including the complete image of a mask."""
    corners = [corner for shape in shapes if isinstance(shape, Polygon) for corner in shape.corners]
    corners += [
        corner for shape in shapes if isinstance(shape, RegionMask) for corner in ((0.0, 0.0), _extent(shape, frame))
    ]
    xs, ys = zip(*corners, strict=True) if corners else ((0.0,), (0.0,))
    return _Raster(min(xs), min(ys), (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0, cells, cells, frame)


def _extent(mask: RegionMask, frame: CoordinateFrame) -> tuple[float, float]:
    """The extent of a mask's image in a frame; in pixels of the mask if the frame has no size."""
    return frame.width or float(mask.size[0]), frame.height or float(mask.size[1])


def _moved(
    shape: Shape, layout: Layout, source: CoordinateFrame, target: CoordinateFrame
) -> Polygon | RegionMask | None:
    """Convert a shape to the target frame, a box to a polygon; None for an empty box."""
    if isinstance(shape, RegionMask):
        return shape
    if isinstance(shape, StatedBox):
        box = box_of(shape.numbers, layout, source).to(target)
        edges = ((box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom))
        return None if box.empty else Polygon(edges)
    points = [Point(x, y, source).to(target) for x, y in shape.corners]
    return Polygon(tuple((point.x, point.y) for point in points))


def _named(shapes: Sequence[Shape]) -> str:
    names = Counter({Polygon: "polygon", RegionMask: "mask", StatedBox: "box"}[type(shape)] for shape in shapes)
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
