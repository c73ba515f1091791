"""References that no answer can match, because they cover nothing, are not scored."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo import build_rewards
from mmgrpo.config import RewardConfig
from tests.rewards.written import score_of

ORIGINAL = {"frame": "original"}
BOX = "[10, 20, 110, 220]"


def reward(name: str, **settings: Any) -> Any:
    return build_rewards([RewardConfig.model_validate({"name": name, "coordinates": ORIGINAL, **settings})])[0].function


@pytest.mark.parametrize("reference", [[10, 20, 10, 20], [110, 220, 10, 20], [10, 20, 110, 20]])
@pytest.mark.parametrize(
    ("name", "answer", "wrap"),
    [
        ("box_iou", BOX, lambda box: box),
        ("point_in_box", "[15, 25]", lambda box: box),
        ("detection", f"[{BOX}]", lambda box: [[10, 20, 110, 220], box]),
        ("average_precision", f"[{BOX}]", lambda box: [[10, 20, 110, 220], box]),
        ("tracking", '{"boxes": {"1": [10, 20, 110, 220]}}', lambda box: {"boxes": {"1": box}}),
        ("mask_iou", BOX, lambda box: box),
        ("gui_action", '{"action": "click", "point": [15, 25]}', lambda box: {"action": "click", "bbox": box}),
    ],
)
def test_a_reference_without_area_is_not_scored(name: str, answer: str, wrap: Any, reference: list[int]) -> None:
    assert score_of(reward(name), answer, wrap(reference)) is None
    assert score_of(reward(name), answer, wrap([10, 20, 110, 220])) is not None


def test_the_layout_of_the_reference_decides() -> None:
    by_size = reward("box_iou", coordinates={**ORIGINAL, "reference_layout": "xywh"})
    assert score_of(by_size, "[110, 220, 120, 240]", [110, 220, 10, 20]) == 1.0
    assert score_of(by_size, "[110, 220, 120, 240]", [110, 220, 10, 0]) is None


def test_an_empty_mask_is_not_scored() -> None:
    assert score_of(reward("mask_iou"), BOX, {"size": [4, 4], "counts": [16]}) is None


@pytest.mark.parametrize(
    "answer",
    [
        '{"x1": 10, "y1": 20, "x2": 110, "y2": 220}',
        '{"xmin": 10, "ymin": 20, "xmax": 110, "ymax": 220}',
        '{"bbox_2d": ["10", "20", "110.0", "220"]}',
        '{"bbox": {"left": 10, "top": 20, "right": 110, "bottom": 220}}',
    ],
)
def test_edges_by_name_and_numbers_as_texts_are_read(answer: str) -> None:
    assert score_of(reward("box_iou"), answer, [10, 20, 110, 220]) == 1.0
    assert score_of(reward("box_iou"), answer.replace("220", "nan"), [10, 20, 110, 220]) == 0.0
