from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from mmgrpo.rewards.grounding.masks import MaskIou
from mmgrpo.rewards.parsing.regions import MAX_PIXELS, Polygon, RegionMask, parse_shapes, rasterize_polygon
from mmgrpo.rewards.parsing.regions import decode_rle as decoded_or_none
from PIL import Image

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, score_of, wrote

LEFT_HALF = {"size": [10, 20], "counts": [0, 100, 100]}  # 10 rows, 20 columns; the first 10 columns


def alike(**fields: Any) -> dict[str, Any]:
    """Model and data in one frame."""
    return {"frame": "original", "reference_frame": "original", **fields}


def reward(**settings: Any) -> MaskIou:
    return MaskIou(**{"coordinates": alike(), **settings})  # pyrefly: ignore[bad-argument-type]


def decoded(size: Any, counts: Any) -> np.ndarray:
    grid = decoded_or_none(size, counts)
    assert grid is not None
    return grid


def blob(seed: int, height: int = 24, width: int = 33) -> np.ndarray:
    """A mask with runs of every length."""
    noise = np.random.RandomState(seed).rand(height // 3, width // 3)
    return np.kron(noise > 0.5, np.ones((3, 3))).astype(bool)


def runs(grid: np.ndarray) -> list[int]:
    """Lengths of the runs down the columns, by counting."""
    counts, current = [0], False
    for value in grid.T.reshape(-1):
        if value != current:
            counts.append(0)
            current = value
        counts[-1] += 1
    return counts


def test_run_lengths_by_hand():
    # columns first: 0 0 1 | 1 1 0
    assert decoded([3, 2], [2, 3, 1]).tolist() == [[False, True], [False, True], [True, False]]
    assert decoded([3, 2], "231").tolist() == decoded([3, 2], [2, 3, 1]).tolist()
    assert decoded([1, 2], [0, 2]).tolist() == [[True, True]]


def test_compressed_masks_are_read_as_coco_writes_them():
    coco = pytest.importorskip("pycocotools.mask")
    for seed in range(20):
        grid = blob(seed)
        written = coco.encode(np.asfortranarray(grid.astype(np.uint8)))
        for counts in (written["counts"], written["counts"].decode(), runs(grid)):
            assert np.array_equal(decoded(list(grid.shape), counts), grid)
    long = np.zeros((2000, 3000), bool)
    long[500:1800, 70:2900] = True
    written = coco.encode(np.asfortranarray(long.astype(np.uint8)))
    assert np.array_equal(decoded([2000, 3000], written["counts"].decode()), long)


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        ([3, 2], [2, 3]), ([3, 2], [2, 3, 2]), ([3, 2], [-1, 7]), ([3, 2], [2.0, 4]), ([3, 2], [True, 5]),
        ([3, 2], "~"), ([3, 2], "P"), ([3, 2], "23\u00e9"), ([3, 2], "PPPPPPPPPP1"),
        ([3], [3]), ([0, 2], []), ([3, 2], None), ([3, 2], [0] * 100),
        ([10**9, 10**9], [10**18]), ([MAX_PIXELS, 2], [2 * MAX_PIXELS]), (["3", 2], [6]),
    ],
)  # fmt: skip
def test_malformed_masks_are_none(size: Any, counts: Any):
    assert decoded_or_none(size, counts) is None
    assert parse_shapes({"size": size, "counts": counts}) == []


def test_pixels_are_painted_by_their_centers():
    assert rasterize_polygon([(0, 0), (3, 0), (3, 2), (0, 2)], 4, 3).astype(int).tolist() == [
        [1, 1, 1, 0],
        [1, 1, 1, 0],
        [0] * 4,
    ]
    assert rasterize_polygon([(0.6, 0), (2.4, 0), (2.4, 9), (0.6, 9)], 4, 1).astype(int).tolist() == [[0, 1, 0, 0]]
    # under the diagonal of 4 x 4: centres (x, y) with x < y
    lower = rasterize_polygon([(0, 0), (4, 4), (0, 4)], 4, 4)
    assert [[bool(x + 0.5 < y + 0.5) for x in range(4)] for y in range(4)] == [
        [bool(lower[y, x]) and x != y for x in range(4)] for y in range(4)
    ]
    bow = rasterize_polygon([(0, 0), (8, 8), (8, 0), (0, 8)], 8, 8)  # two triangles that touch in the middle
    assert [bow[4, 1], bow[4, 6], bow[1, 4], bow[6, 4]] == [True, True, False, False]
    assert not rasterize_polygon([(-5, -5), (-1, -5), (-1, 9)], 4, 4).any()
    assert rasterize_polygon([(-1e6, -1e6), (1e6, -1e6), (1e6, 1e6), (-1e6, 1e6)], 4, 4).all()


def test_painted_area_is_the_shoelace_area():
    draw = np.random.RandomState(0)
    for _ in range(20):
        angles = np.sort(draw.rand(7)) * 2 * np.pi
        corners = [(250 + 200 * np.cos(a), 250 + 200 * np.sin(a)) for a in angles]
        xs, ys = np.array(corners).T
        area = abs(np.dot(xs, np.roll(ys, -1)) - np.dot(ys, np.roll(xs, -1))) / 2
        assert rasterize_polygon(corners, 500, 500).sum() == pytest.approx(
            area, abs=500
        )  # less than the outline's length


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("[[0, 0], [4, 0], [4, 4]]", [Polygon]),
        ("[[0, 0], [4, 0], [4, 4], [0, 4]]", [Polygon]),
        ('{"polygon": [0, 0, 4, 0, 4, 4]}', [Polygon]),
        ('{"segmentation": [[0, 0, 4, 0, 4, 4], [5, 5, 9, 5, 9, 9]]}', [Polygon, Polygon]),
        ('{"mask": {"size": [3, 2], "counts": [2, 3, 1]}, "label": "x"}', [RegionMask]),
        ('{"size": [3, 2], "counts": "231"}', [RegionMask]),
        ("[0, 0, 4, 4]", None), ("[[0, 0], [4, 4]]", None), ('[{"bbox_2d": [0, 0, 4, 4]}]', None), ("0 0 4 4", None),
        ("[0, 0, 4, 0, 4]", []), ("[[0, 0], [4, 0], [4]]", []), ("none", []), ("[1, 2, 3]", []),
    ],
)  # fmt: skip
def test_regions_are_read_as_models_write_them(text: str, kinds: list[type] | None):
    shapes = parse_shapes(text)
    assert shapes is not None
    if kinds is None:
        assert [getattr(shape, "numbers", None) for shape in shapes] == [(0, 0, 4, 4)]
    else:
        assert [type(shape) for shape in shapes] == kinds


def test_against_a_mask_by_hand():
    # the mask is 100 pixels
    assert score_of(reward(), "[0, 0, 10, 10]", LEFT_HALF) == 1
    assert score_of(reward(), "[5, 0, 15, 10]", LEFT_HALF) == 50 / 150
    assert score_of(reward(), "[[0, 0], [10, 0], [10, 5], [0, 5]]", LEFT_HALF) == 0.5
    assert score_of(reward(), json.dumps(LEFT_HALF), LEFT_HALF) == 1
    assert score_of(reward(), json.dumps({"size": [5, 10], "counts": [0, 25, 25]}), LEFT_HALF) == 1  # half the size
    # together, and the same twice
    assert score_of(reward(), "[[0, 0, 5, 10], [5, 0, 10, 10], [0, 0, 5, 10]]", LEFT_HALF) == 1
    assert score_of(reward(), "[-100, -100, 10, 100]", LEFT_HALF) == 1  # outside the image does not count
    assert score_of(reward(), "[10, 10, 0, 0]", LEFT_HALF) == score_of(reward(), "nowhere", LEFT_HALF) == 0
    assert score_of(reward(threshold=0.3), "[5, 0, 15, 10]", LEFT_HALF) == 1
    assert score_of(reward(threshold=0.4), "[5, 0, 15, 10]", LEFT_HALF) == 0


def test_equal_to_coco():
    coco = pytest.importorskip("pycocotools.mask")
    for seed in range(10):
        made, real = blob(seed), blob(seed + 100)
        pair = [coco.encode(np.asfortranarray(grid.astype(np.uint8))) for grid in (made, real)]
        answer = json.dumps({"size": list(made.shape), "counts": pair[0]["counts"].decode()})
        wanted = {"size": list(real.shape), "counts": pair[1]["counts"]}
        assert score_of(reward(), answer, wanted) == pytest.approx(coco.iou([pair[0]], [pair[1]], [0])[0, 0], abs=1e-12)


def test_against_polygons_by_hand():
    square = [[[0, 0], [10, 0], [10, 10], [0, 10]]]
    assert score_of(reward(), "[0, 0, 10, 10]", square) == 1
    assert score_of(reward(), "[5, 5, 15, 15]", square) == pytest.approx(25 / 175, abs=2e-3)
    assert score_of(reward(), "[[0, 0], [10, 0], [10, 10]]", square) == pytest.approx(0.5, abs=2e-3)
    assert score_of(reward(coordinates=alike(reference_layout="xywh")), "[5, 5, 15, 15]", [5, 5, 10, 10]) == 1
    assert score_of(reward(), json.dumps(LEFT_HALF), [0, 0, 20, 10]) == 0.5


def test_a_sliver_far_off_makes_no_box_better():
    """One grid around everything would have cells of 400 units here, in which the two boxes are the same cell."""
    square = [[[100, 100], [500, 100], [500, 500], [100, 500]]]
    loose = [[0, 0], [390, 0], [390, 390], [0, 390]]
    # 290 x 290 shared, of 400 x 400 and 390 x 390
    expected = 290**2 / (400**2 + 390**2 - 290**2)
    for text in (json.dumps([loose]), json.dumps([loose, [[200_000, 0], [200_001, 0], [200_001, 1]]])):
        assert score_of(reward(), text, square) == pytest.approx(expected, abs=2e-3)
    # 1000 x 1000 around it, and the full plane
    assert score_of(reward(), "[0, 0, 1000, 1000]", square) == pytest.approx(0.16, abs=2e-3)
    assert score_of(reward(), "[-1e6, -1e6, 1e6, 1e6]", square) == pytest.approx(400**2 / 4e12, rel=0.05)
    with_mask = json.dumps([{"size": [4, 4], "counts": [0, 16]}, [0, 0, 1000, 1000]])
    assert score_of(reward(), with_mask, square) == pytest.approx(0.16, abs=2e-3)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ("original", "[0, 0, 10, 10]"),
        ("resized", "[0, 0, 20, 30]"),
        ("norm1000", "[0, 0, 500, 1000]"),
        ("norm1", "[[0, 0], [0.5, 0], [0.5, 1], [0, 1]]"),
    ],
)
def test_one_region_in_every_frame(frame: Any, text: str):
    sample = wrote(text, LEFT_HALF, resized_size=[40, 30])
    assert explained(MaskIou(coordinates=frame), sample) == {
        "parsed": "1 polygon" if frame == "norm1" else "1 box",
        "masks": [
            {"box": [0, 0, 10, 10], "role": role, "size": [10, 10], "counts": [0, 100]}
            for role in ("stated", "reference")
        ],
        "space": {"name": "original", "width": 20, "height": 10},
    }
    (score,) = MaskIou(coordinates=frame)([wrote(text, [0, 0, 10, 10], original_size=[20, 10], resized_size=[40, 30])])
    assert score is not None
    assert float(score) == pytest.approx(1, abs=1e-9)
    halved = wrote(text, LEFT_HALF, resized_size=[40, 30], original_size=[40, 20])  # a mask at half the resolution
    (other,) = MaskIou(coordinates=frame)([halved])
    assert other is not None
    assert float(other) == (25 / 100 if frame == "original" else 1)


def test_an_image_is_a_mask():
    picture = Image.new("L", (20, 10))
    picture.paste(255, (0, 0, 10, 10))
    assert score_of(reward(), "[0, 0, 10, 5]", picture) == 0.5


def test_references_that_are_no_region_are_not_scored():
    mixed = [LEFT_HALF, [0, 0, 1, 1]]
    for reference in ("a dog", [1, 2, 3], {"size": [3, 2], "counts": [1]}, mixed, [[0, 0, 1, 1]] * 101):
        assert score_of(reward(), "[0, 0, 1, 1]", reference) is None


@pytest.mark.nightly
def test_hostile_regions_end():
    started = time.monotonic()
    wide = {"size": [4096, 4096], "counts": [0, 4096 * 4096]}
    star = json.dumps([[i * 7919 % 4096, i * 104729 % 4096] for i in range(2000)])
    for text in (
        star, star.replace("[[", "[[[") + "," * 9, "[[1e6, 1e6], [-1e6, 1e6], [0, -1e6]]",
        json.dumps([[0, 0, 1, 1]] * 101), json.dumps([wide] * 50),
        '{"size": [4096, 4096], "counts": "' + "0" * 90_000 + '"}', "[" * 50_000,
        '{"mask":' * 50_000, "[1,2,3," * 20_000,
        json.dumps(json.loads(star) * 3), '{"size": [1000000000, 1000000000], "counts": [1]}',
    ):  # fmt: skip
        assert 0 <= score_of(reward(), text, wide) <= 1
        assert 0 <= score_of(reward(), text, [0, 0, 10, 10]) <= 1
    assert time.monotonic() - started < 60
    assert explained(reward(), wrote(json.dumps([[0, 0, 1, 1]] * 101), LEFT_HALF)) == {"reason": "too many regions"}


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"grid must be in 16 \.\. 4096, got 5"):
        MaskIou(grid=5)
    with pytest.raises(ConfigError, match=r"threshold must be in \[0, 1\]"):
        MaskIou(threshold=2)
