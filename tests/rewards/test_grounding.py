from __future__ import annotations

import json
import random
from itertools import permutations
from typing import Any

import pytest
from mmgrpo.rewards.grounding.localization import BoxIou, Detection, PointInBox, TemporalIou
from mmgrpo.rewards.parsing.coordinates import parse_boxes, parse_points, parse_spans
from PIL import Image

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt, Sample
from tests.rewards.written import explained, score_of, scores_of, wrote


def same(**settings: Any) -> dict[str, Any]:
    """Model and data in one frame."""
    return {"coordinates": {"frame": "norm1000", "reference_frame": "norm1000"}, **settings}


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 30, 40]",
        'Here: ```json\n[{"bbox_2d": [10, 20, 30, 40], "label": "dog"}]\n```',
        '{"bbox": [10, 20.0, 30, 40]}',
        "<|box_start|>(10,20),(30,40)<|box_end|>",
        "[[10, 20], [30, 40]]",
        "{'box': (10, 20, 30, 40)}",
        "[10, 20, 30, '40']",
        "10 20 30 40",
        "<box>10,20,30,40</box>",
        "<box>(10,20),(30,40)</box><points>(12,25),(20,30)</points>",
        "<ref>[a] dog</ref><|box_start|>(10,20),(30,40)<|box_end|> of [640, 480, 3, 1]",
    ],
)
def test_boxes_are_read_as_models_write_them(text: str):
    assert [box.numbers for box in parse_boxes(text)] == [(10, 20, 30, 40)]


@pytest.mark.parametrize(
    "text",
    ["", "10 20 30", "1 2 3 4 5", "[10, 20, 30]", "[10, 20, 30, 'wide']", "[1e9, 0, 1, 1]", "[true, 1, 2, 3]", "[[]]"],
)
def test_texts_that_are_no_box_give_none(text: str):
    assert parse_boxes(text) == []
    assert score_of(BoxIou(**same()), text, [10, 20, 30, 40]) == 0


def test_labels_and_lists_of_boxes():
    listed = parse_boxes('{"objects": [{"bbox": [1, 2, 3, 4], "label": "Polar_Bear"}, {"box": [5, 6, 7, 8]}]}')
    columns = parse_boxes({"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "label": ["polar bear", None]})
    assert [(box.numbers, box.label) for box in listed] == [((1, 2, 3, 4), "polar bear"), ((5, 6, 7, 8), None)]
    assert columns == listed


def test_points_and_spans():
    assert parse_points("[3, 4]") == parse_points("(3, 4)") == parse_points("click 3, 4") == [(3, 4)]
    assert parse_points('{"point_2d": [3, 4]}') == parse_points('{"action": "click", "x": 3, "y": 4}') == [(3, 4)]
    assert parse_points("[[1, 2], [3, 4]]") == [(1, 2), (3, 4)]
    assert parse_points("1 2 3") == []
    assert (
        parse_spans("[3, 700]")
        == parse_spans('{"start": 3, "end": 700}')
        == parse_spans("from 3 s to 700 s")
        == [(3, 700)]
    )
    assert parse_spans("0:03 to 11:40") == [(3, 700)]
    assert parse_spans("at 3 s") == []


def test_box_iou_modes_by_hand():
    # 10 x 10 at 0 and at (5, 5): 25 shared of 175; hull 225, of which 50 are neither's
    text, wanted = "[5, 5, 15, 15]", [0, 0, 10, 10]
    assert score_of(BoxIou(**same()), text, wanted) == 25 / 175
    assert score_of(BoxIou(**same(mode="giou")), text, wanted) == pytest.approx(25 / 175 - 50 / 225)
    for threshold, hit in ((0.1, 1), (25 / 175, 1), (0.15, 0)):
        assert score_of(BoxIou(**same(mode="threshold", threshold=threshold)), text, wanted) == hit


def test_several_boxes_or_a_swapped_one_score_the_least():
    for text in ("[0,0,10,10] [0,0,10,10]", "[10, 10, 0, 0]", "nowhere"):
        assert score_of(BoxIou(**same()), text, [0, 0, 10, 10]) == 0
        assert score_of(BoxIou(**same(mode="giou")), text, [0, 0, 10, 10]) == -1
    assert score_of(BoxIou(**same(extract="tag")), "[1,1,2,2] <answer>[0,0,9,9]</answer>", [0, 0, 9, 9]) == 1


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ("original", "[64, 120, 320, 360]"),
        ("resized", "[32, 60, 160, 180]"),
        ("norm1000", "[100, 250, 500, 750]"),
        ("norm1", "[0.1, 0.25, 0.5, 0.75]"),
    ],
)
def test_one_box_in_every_frame(frame: Any, text: str):
    columns = {"original_size": [640, 480], "resized_size": [320, 240], "answer": [64, 120, 320, 360]}
    sample = Sample(Prompt("q", columns=columns), 0, 0, text=text)
    assert scores_of(BoxIou(coordinates=frame), [sample]) == [pytest.approx(1)]
    assert scores_of(Detection(coordinates=frame), [sample]) == [pytest.approx(1)]
    (other,) = scores_of(BoxIou(coordinates="norm1" if frame == "norm1000" else "norm1000"), [sample])
    assert other != pytest.approx(1)  # a wrong frame is only seen in the score


def test_the_size_is_that_of_the_prompts_image():
    prompt = Prompt("q", images=[Image.new("L", (640, 480))], columns={"answer": [64, 120, 256, 240]})
    sample = Sample(prompt, 0, 0, text="[100, 250, 500, 750]")
    assert scores_of(BoxIou(coordinates={"frame": "norm1000", "reference_layout": "xywh"}), [sample]) == [1]
    with pytest.raises(DataError, match="'resized_size'"):
        BoxIou()([sample])


def test_references_that_are_no_box_are_not_scored():
    for reference in ("a dog", [1, 2, 3], [[0, 0, 1, 1], [1, 1, 2, 2]]):
        assert score_of(BoxIou(**same()), "[0,0,1,1]", reference) is None
    assert BoxIou(**same())([wrote("[0,0,1,1]"), wrote(None, [0, 0, 1, 1])]) == [None, None]
    assert score_of(BoxIou(**same()), "[0,0,1,1]", "[0, 0, 1, 1]") == 1


A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]
NEAR_B = [20, 0, 30, 8]  # IoU 0.8 with B


def test_detection_by_hand():
    reward = Detection(**same())
    assert score_of(reward, json.dumps([A, NEAR_B]), [A, B]) == pytest.approx((1 + 0.8) / 2)
    assert score_of(reward, json.dumps([A]), [A, B]) == 0.5
    # three boxes for two: (1 + 0.8) / 2 * 2 / 3
    assert score_of(reward, json.dumps([A, NEAR_B, C]), [A, B]) == pytest.approx(0.6)
    assert score_of(Detection(**same(length_power=0)), json.dumps([A, NEAR_B, C]), [A, B]) == pytest.approx(0.9)
    assert score_of(Detection(**same(graded=False)), json.dumps([A, NEAR_B]), [A, B]) == 1
    assert score_of(Detection(**same(threshold=0.9)), json.dumps([A, NEAR_B]), [A, B]) == 0.5
    assert score_of(reward, json.dumps([A, A]), [A, B]) == 0.5  # one to one


def test_detection_without_boxes():
    assert [score_of(Detection(**same()), text, []) for text in ("[]", "none", json.dumps([A]))] == [1, 1, 0]
    assert score_of(Detection(**same()), "[]", [A]) == 0
    assert score_of(Detection(**same()), "[]", "a dog") is None


def test_labels_must_agree():
    answer = json.dumps([{"bbox_2d": A, "label": "Dog"}, {"bbox_2d": B, "label": "cat"}])
    wanted = [{"bbox": A, "label": "dog"}, {"bbox": B, "label": "dog"}]
    assert score_of(Detection(**same()), answer, wanted) == 0.5
    assert score_of(Detection(**same(labels=False)), answer, wanted) == 1
    assert score_of(Detection(**same()), answer, [A, B]) == 1


def test_the_assignment_is_the_best_one_and_order_does_not_matter():
    """Brute force over all assignments, seeded."""
    draw = random.Random(0)
    reward = Detection(**same(threshold=0.0))
    for _ in range(50):
        references = [jittered(draw, 0) for _ in range(draw.randint(1, 4))]
        stated = [jittered(draw, 30) for _ in range(draw.randint(1, 4))]
        value = score_of(reward, json.dumps(stated), references)
        pairs = [[score_of(BoxIou(**same()), json.dumps(box), other) for other in references] for box in stated]
        padded = [row + [0.0] * (4 - len(references)) for row in pairs] + [[0.0] * 4] * (4 - len(stated))
        best = max(sum(padded[i][j] for i, j in enumerate(order)) for order in permutations(range(4)))
        assert value == pytest.approx(best / max(len(references), len(stated)))
        shuffled = json.dumps(draw.sample(stated, len(stated)))
        assert score_of(reward, shuffled, draw.sample(references, len(references))) == pytest.approx(value)
        assert 0 <= value <= 1


def jittered(draw: random.Random, by: int) -> list[int]:
    left, top = draw.randint(0, 60), draw.randint(0, 60)
    return [left, top, left + 40 + draw.randint(0, by), top + 40 + draw.randint(0, by)]


def test_more_boxes_never_pay():
    """The hack of raw AP: listing boxes until some hit. Every spurious box lowers the score."""
    scores = [score_of(Detection(**same()), json.dumps([A, *([[900, 900, 999, 999]] * n)]), [A, B]) for n in range(6)]
    assert scores == [0.5, 0.5, pytest.approx(1 / 3), 0.25, 0.2, pytest.approx(1 / 6)]
    grid = [[x, y, x + 40, y + 40] for x in range(0, 1000, 40) for y in range(0, 1000, 40)]
    assert score_of(Detection(**same()), json.dumps(grid), [A, B]) == 0  # 625 boxes, more than max_boxes
    assert score_of(Detection(**same(max_boxes=1000)), json.dumps(grid), [[0, 0, 40, 40]]) == pytest.approx(1 / 625)


def test_point_in_box():
    reward = PointInBox(**same())
    texts = ("[5, 5]", "(10, 10)", "click at 0, 3", "[11, 5]", "[5, 5] [6, 6]", "none")
    assert [score_of(reward, text, A) for text in texts] == [1, 1, 1, 0, 0, 0]
    prompt = Prompt("q", images=[Image.new("L", (200, 100))], columns={"answer": [20, 10, 40, 30]})
    inside, outside = Sample(prompt, 0, 0, text="[150, 200]"), Sample(prompt, 0, 1, text="[30, 20]")
    assert scores_of(PointInBox(coordinates="norm1000"), [inside, outside]) == [1, 0]


def test_temporal_iou_by_hand():
    # 2..6 and 4..10: 2 s shared of 8
    assert score_of(TemporalIou(), "[2, 6]", [4, 10]) == 0.25
    assert score_of(TemporalIou(), "from 0:02 to 0:06", "4 to 10") == 0.25
    assert score_of(TemporalIou(unit="frames", fps=2), "frames 4 to 12", [4, 10]) == 0.25
    assert score_of(TemporalIou(), "[4, 10]", {"start": 4, "end": 10}) == 1
    for text in ("[6, 2]", "[20, 30]", "[4, 4]", "at 5", "[1, 2], [3, 4]", ""):
        assert score_of(TemporalIou(), text, [4, 10]) == 0
    for reference in ([10, 4], "soon", [4]):
        assert score_of(TemporalIou(), "[4, 10]", reference) is None


def test_settings_are_checked():
    with pytest.raises(
        ConfigError, match=r"BoxIou\.coordinates\.frame must be one of original, resized, norm1000, norm1, got 'pixels'"
    ):
        BoxIou(coordinates="pixels")
    with pytest.raises(ConfigError, match="positive fps for unit: frames and none for seconds, got None"):
        TemporalIou(unit="frames")
    with pytest.raises(ConfigError, match=r"pixels must be \[least, most\], got \[5\]"):
        Detection(coordinates={"pixels": [5]})
    with pytest.raises(ConfigError, match=r"threshold must be in \[0, 1\], got 50"):
        BoxIou(threshold=50)
    with pytest.raises(ConfigError, match="length_power >= 0"):
        Detection(length_power=-1)


def test_explained_boxes_are_in_the_frame_of_the_references():
    # the model writes 0..1000 of an image of 200 x 100
    sample = wrote("[[0, 0, 500, 1000], [900, 900, 1000, 1000]]", [[0, 0, 100, 100]], original_size=[200, 100])
    boxes = [
        {"box": [0, 0, 100, 100], "role": "stated"},
        {"box": [180, 90, 200, 100], "role": "stated"},
        {"box": [0, 0, 100, 100], "role": "reference"},
    ]
    frame = {"name": "original", "width": 200, "height": 100}
    assert explained(Detection(coordinates="norm1000"), sample) == {
        "boxes": boxes,
        "space": frame,
        "pairs": [[0, 0, 1.0]],
        "parts": {"overlap": 1, "length": 0.5},
    }
    assert explained(BoxIou(coordinates="norm1000"), sample) == {
        "boxes": boxes, "space": frame, "reason": "box stated 2 times, not once",
    }  # fmt: skip
    pointed = wrote("[100, 500]", [0, 0, 100, 100], original_size=[200, 100])
    assert explained(PointInBox(coordinates="norm1000"), pointed) == {
        "points": [{"point": [20, 50], "role": "stated"}],
        "boxes": boxes[2:],
        "space": frame,
    }


def test_a_flood_of_boxes_is_counted_and_not_kept():
    many = str([[0, 0, 1, 1]] * 40)
    assert explained(Detection(max_boxes=20), wrote(many, [])) == {
        "boxes": [], "num_boxes": 40, "reason": "40 boxes, more than 20",
    }  # fmt: skip
    explanation = explained(Detection(**same()), wrote(many, [[0, 0, 1, 1]]))
    assert (len(explanation["boxes"]), explanation["num_boxes"]) == (31, 40)
    assert explained(Detection(**same()), wrote("nothing", "[]")) == {"boxes": []}
