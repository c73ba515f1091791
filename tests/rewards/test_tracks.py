from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from mmgrpo.rewards.grounding.tracks import Tracking, parse_track
from mmgrpo.rewards.parsing.coordinates import span_iou

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, score_of, scores_of, wrote

BOX, HALF, AWAY = [0, 0, 10, 10], [0, 0, 10, 5], [50, 50, 60, 60]
THREE = {"boxes": {"1": BOX, "2": BOX, "3": BOX}}
SPANNED = {"time": [2, 6], "boxes": {"2": BOX, "4": BOX}}


def alike(**fields: Any) -> dict[str, Any]:
    """Model and data in one frame."""
    return {"frame": "norm1000", "reference_frame": "norm1000", **fields}


def reward(**settings: Any) -> Tracking:
    return Tracking(**{"coordinates": alike(), **settings})  # pyrefly: ignore[bad-argument-type]


def boxes_text(boxes: dict[str, Any], **more: Any) -> str:
    return json.dumps({"boxes": boxes, **more})


@pytest.mark.parametrize(
    "text",
    [
        boxes_text({"1": BOX, "2": HALF}),
        '```json\n[{"frame": 1, "bbox_2d": [0, 0, 10, 10]}, {"frame": 2, "bbox_2d": [0, 0, 10, 5]}]\n```',
        '{"0:01": [0, 0, 10, 10], "2 s": [0, 0, 10, 5]}',
        "{'frame_1': (0, 0, 10, 10), 'frame_2': (0, 0, 10, 5)}",
        '[{"time": 1.0, "box": [0, 0, 10, 10]}, {"time": "00:02", "box": [0, 0, 10, 5]}]',
        '{"tracks": [{"t": 1, "bbox": [0, 0, 10, 10]}, {"t": 2, "bbox": [0, 0, 10, 5]}]}',
        '{"1": [9, 9, 9, 9], "2": [0, 0, 10, 5]} {"1": [0, 0, 10, 10]}',
    ],
)
def test_tracks_are_read_as_models_write_them(text: str):
    assert {moment: box.numbers for moment, box in parse_track(text).boxes.items()} == {1: tuple(BOX), 2: tuple(HALF)}


def test_spans_are_read():
    for text in (
        '{"time": [2, 6]}',
        '{"span": {"start": 2, "end": 6}}',
        '{"time": ["0:02", "6 s"]}',
        '{"start": 2, "end": 6}',
    ):
        assert parse_track(text).span == (2, 6)
    for text in ("", "[2, 6]", '{"time": 2}', '{"time": [2, "now"]}', boxes_text({"1": BOX})):
        assert parse_track(text).span is None


def test_mean_iou_by_hand():
    assert score_of(reward(), boxes_text({"1": BOX, "2": HALF, "3": AWAY}), THREE) == pytest.approx(1.5 / 3)
    assert score_of(reward(), boxes_text({"1": BOX, "2": HALF}), THREE) == pytest.approx(1.5 / 3)
    assert score_of(reward(over="shared"), boxes_text({"1": BOX, "2": HALF}), THREE) == pytest.approx(1.5 / 2)
    with_more = boxes_text({"1": BOX, "2": HALF, "7": BOX})
    assert score_of(reward(), with_more, THREE) == pytest.approx(1.5 / 3)
    assert score_of(reward(over="union"), with_more, THREE) == pytest.approx(1.5 / 4)
    for over in ("reference", "shared", "union"):
        assert score_of(reward(over=over), boxes_text({"7": BOX}), THREE) == 0
        assert score_of(reward(over=over), "nothing", THREE) == 0


def test_with_time_by_hand():
    # 4 .. 8 and 2 .. 6: 2 of 6; boxes 1 and 0.5
    text = boxes_text({"2": BOX, "4": HALF}, time=[4, 8])
    assert score_of(reward(), text, SPANNED) == pytest.approx(0.5 * 0.75 + 0.5 / 3)
    assert score_of(reward(temporal=0.2), text, SPANNED) == pytest.approx(0.8 * 0.75 + 0.2 / 3)
    assert score_of(reward(temporal=0), text, SPANNED) == 0.75
    assert score_of(reward(), boxes_text({"2": BOX, "4": BOX}), SPANNED) == 0.5
    assert score_of(reward(), boxes_text({}, time=[2, 6]), SPANNED) == 0.5
    assert score_of(reward(), boxes_text({"2": BOX, "4": BOX}, time=[6, 2]), SPANNED) == 0.5
    assert (
        score_of(reward(), boxes_text({"1": BOX, "2": BOX, "3": BOX}, time=[0, 1]), THREE) == 1
    )  # no span is asked for


def test_spans_by_hand():
    assert span_iou((4, 8), (2, 6)) == span_iou((2, 6), (4, 8)) == pytest.approx(1 / 3)
    assert (span_iou((0, 1), (0, 1)), span_iou((0, 1), (1, 2)), span_iou((1, 1), (1, 1)), span_iou((3, 2), (2, 3))) == (
        1, 0, 0, 0,
    )  # fmt: skip


def test_moments_may_be_near():
    text = boxes_text({"1.2": BOX, "2.4": BOX, "2.9": HALF})
    assert score_of(reward(), text, THREE) == 0
    assert score_of(reward(tolerance=0.3), text, THREE) == pytest.approx(1.5 / 3)
    assert score_of(reward(tolerance=0.5), text, THREE) == pytest.approx(2.5 / 3)
    once = boxes_text({"1.5": BOX})  # near two, counted for one
    assert score_of(reward(tolerance=0.6), once, THREE) == pytest.approx(1 / 3)


def test_the_order_does_not_matter_and_the_values_are_bounded():
    draw = random.Random(0)
    for _ in range(30):
        boxes = {str(draw.randint(0, 9)): [0, 0, draw.randint(1, 20), draw.randint(1, 20)] for _ in range(6)}
        reference = {"time": [0, 5], "boxes": {str(draw.randint(0, 9)): BOX for _ in range(5)}}
        shuffled = dict(draw.sample(sorted(boxes.items()), len(boxes)))
        for over in ("reference", "shared", "union"):
            value = score_of(reward(over=over), boxes_text(boxes, time=[1, 3]), reference)
            assert value == pytest.approx(score_of(reward(over=over), boxes_text(shuffled, time=[1, 3]), reference))
            assert 0 <= value <= 1


def test_spaces_and_references():
    sample = wrote(boxes_text({"1": [0, 0, 500, 500]}), {"boxes": {"1": [0, 0, 100, 50]}}, original_size=[200, 100])
    assert scores_of(Tracking(coordinates="norm1000"), [sample]) == [1]
    assert (
        score_of(
            reward(coordinates=alike(reference_layout="xywh")), boxes_text({"1": [5, 5, 15, 15]}), {"1": [5, 5, 10, 10]}
        )
        == 1
    )
    assert score_of(reward(), boxes_text({"1": BOX}), boxes_text({"1": BOX})) == 1
    for reference in ("a dog", {}, {"boxes": {}}, [BOX], {"time": [6, 2], "boxes": {"1": BOX}}):
        assert score_of(reward(), boxes_text({"1": BOX}), reference) is None


def test_explanations_of_tracks():
    assert explained(reward(), wrote(boxes_text({"2": BOX}, time=[4, 8]), SPANNED)) == {
        "parsed": "boxes at 1 of 2 moments",
        "overlaps": [[2, 1], [4, 0]],
        "spans": [{"span": [4, 8], "role": "stated"}, {"span": [2, 6], "role": "reference"}],
        "parts": {"boxes": 0.5, "span": 0.3333},
    }
    many = boxes_text({str(i): BOX for i in range(30)})
    assert explained(reward(max_moments=20), wrote(many, THREE)) == {"reason": "30 boxes, more than 20"}


@pytest.mark.first_case
@pytest.mark.parametrize(
    "piece", ["{", '{"1":', '{"1":[1,2,3,4],', "[[1,2,3,4],", '{"boxes":', '"', "1:", "{'1':(1,2),"]
)
def test_long_strings_end(piece: str):
    started = time.monotonic()
    for text in (
        piece * (300_000 // len(piece)),
        boxes_text({str(i): BOX for i in range(2_500)}),
        "[" * 30 + "1" + "]" * 30,
    ):
        assert 0 <= score_of(reward(max_moments=2000), text, SPANNED) <= 1
    assert time.monotonic() - started < 20


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="over must be one of reference, shared, union, got 'all'"):
        Tracking(over="all")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match=r"max_moments in 1 \.\. 2000, got 0.0, 5000"):
        Tracking(max_moments=5000)
