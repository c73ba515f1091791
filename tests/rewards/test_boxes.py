from __future__ import annotations

import random
from pathlib import Path

import pytest
from mmgrpo.rewards.parsing.boxes import Box, CoordinateFrame, FrameName, Point, box_of, giou, iou, normalized_frame
from mmgrpo.rewards.parsing.coordinate_frames import Coordinates
from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt

PIXELS = CoordinateFrame("original", 640, 480)
RESIZED = CoordinateFrame("resized", 308, 224)
SPACES = (PIXELS, RESIZED, normalized_frame("norm1000"), normalized_frame("norm1"))


def box(left: float, top: float, right: float, bottom: float, frame: CoordinateFrame = PIXELS) -> Box:
    return Box(left, top, right, bottom, frame)


def random_box(draw: random.Random) -> Box:
    left, right = sorted(draw.uniform(0, 640) for _ in range(2))
    top, bottom = sorted(draw.uniform(0, 480) for _ in range(2))
    return box(left, top, right, bottom)


def edges(area: Box) -> list[float]:
    return [area.left, area.top, area.right, area.bottom]


def test_conversion_by_hand():
    half = box(320, 120, 640, 480)  # the right half from a quarter down
    assert half.to(normalized_frame("norm1000")) == Box(500, 250, 1000, 1000, normalized_frame("norm1000"))
    assert half.to(normalized_frame("norm1")) == Box(0.5, 0.25, 1, 1, normalized_frame("norm1"))
    assert half.to(RESIZED) == Box(154, 56, 308, 224, RESIZED)
    assert Point(64, 48, PIXELS).to(normalized_frame("norm1000")) == Point(100, 100, normalized_frame("norm1000"))


def test_conversions_are_round_trips_and_keep_every_overlap():
    draw = random.Random(0)
    for _ in range(200):
        first, other = random_box(draw), random_box(draw)
        for frame in SPACES:
            converted, too = first.to(frame), other.to(frame)
            assert edges(converted.to(PIXELS)) == pytest.approx(edges(first), rel=1e-12)
            assert iou(converted, too) == pytest.approx(iou(first, other), rel=1e-9, abs=1e-12)
            assert giou(converted, too) == pytest.approx(giou(first, other), rel=1e-9, abs=1e-12)
        assert 0 <= iou(first, other) == iou(other, first) <= 1
        assert -1 < giou(first, other) <= iou(first, other) + 1e-12
        assert iou(first, first) == giou(first, first) == 1


def test_overlap_by_hand():
    # 10 x 10 at 0 and at (5, 5): 25 shared of 175; hull 15 x 15 = 225, of which 50 are neither's
    first, other = box(0, 0, 10, 10), box(5, 5, 15, 15)
    assert iou(first, other) == 25 / 175
    assert giou(first, other) == pytest.approx(25 / 175 - 50 / 225)
    # apart: hull 30 x 10, of which 100 are neither's
    assert (iou(first, box(20, 0, 30, 10)), giou(first, box(20, 0, 30, 10))) == (0, pytest.approx(-1 / 3))
    # a pixel wide is 1, not 2: no +1
    assert iou(box(0, 0, 1, 1), box(0, 0, 2, 1)) == 0.5


@pytest.mark.parametrize("bad", [box(10, 0, 0, 10), box(0, 10, 10, 0), box(5, 0, 5, 10)])
def test_swapped_and_empty_boxes_have_no_area(bad: Box):
    assert bad.empty
    assert iou(bad, bad) == iou(bad, box(0, 0, 10, 10)) == 0
    assert giou(box(0, 0, 10, 10), bad) == -1
    assert not bad.holds(Point(5, 5, PIXELS))


def test_layouts():
    assert box_of([1, 2, 3, 4], "xyxy", PIXELS) == box(1, 2, 3, 4)
    assert box_of([1, 2, 3, 4], "xywh", PIXELS) == box(1, 2, 4, 6)
    assert box_of([1, 2, 3, 4], "yxyx", PIXELS) == box(2, 1, 4, 3)


def test_two_spaces_are_never_mixed():
    with pytest.raises(DataError, match=r"two frames cannot be compared.*convert one with to\(\)"):
        iou(box(0, 0, 1, 1), box(0, 0, 1, 1, frame=RESIZED))
    with pytest.raises(DataError, match="from 'original' to 'resized' without the sizes"):
        box(0, 0, 1, 1, frame=CoordinateFrame("original")).to(CoordinateFrame("resized"))
    with pytest.raises(DataError, match="must be positive"):
        CoordinateFrame("original", 0, 10)


def frames(model: FrameName, reference: FrameName, pixels: tuple[int, int] | None = None) -> Coordinates:
    return Coordinates(frame=model, reference_frame=reference, pixels=pixels)


def test_sizes_are_those_of_columns_or_the_image(tmp_path: Path):
    picture = Image.new("RGB", (640, 480))
    picture.save(tmp_path / "a.png")
    sized = Prompt("q", columns={"original_size": [640, 480], "resized_size": (308, 224)})
    assert frames("resized", "original").of_model(sized) == RESIZED
    for prompt in (sized, Prompt("q", images=[picture]), Prompt("q", images=[str(tmp_path / "a.png")])):
        assert frames("norm1000", "original").of_reference(prompt) == PIXELS
    # as Qwen2.5-VL has it: 640 x 480 rounded to multiples of 28 is 644 x 476, 306544 pixels, more than 100000:
    # both divided by sqrt(307200 / 100000) = 1.7527 and rounded down: 365.1 -> 364, 273.9 -> 252
    assert frames("resized", "original", (3136, 100_000)).of_model(sized_prompt()) == CoordinateFrame(
        "resized", 364, 252
    )
    assert frames("norm1", "norm1").of_model(Prompt("q")) == CoordinateFrame("norm1")  # no size needed


def sized_prompt() -> Prompt:
    return Prompt("q", columns={"original_size": [640, 480]})


def test_missing_columns_are_named():
    with pytest.raises(DataError, match=r"'original_size' with \[width, height\]; the prompt has 0 images"):
        frames("norm1000", "original").of_reference(Prompt("q"))
    with pytest.raises(DataError, match=r"'resized_size' with \[width, height\], or coordinates: \{pixels"):
        frames("resized", "original").of_model(sized_prompt())
    with pytest.raises(DataError, match=r"'original_size' must be \[width, height\], both positive, got '640x480'"):
        frames("norm1", "original").of_reference(Prompt("q", columns={"original_size": "640x480"}))
