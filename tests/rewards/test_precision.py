from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from mmgrpo.rewards.grounding.precision import AveragePrecision

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, score_of, wrote

A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]
NEAR_B = [20, 0, 30, 8]  # IoU 0.8 with B
FAR = [900, 900, 999, 999]


def alike(**fields: Any) -> dict[str, Any]:
    """Model and data in one frame."""
    return {"frame": "norm1000", "reference_frame": "norm1000", **fields}


def reward(**settings: Any) -> AveragePrecision:
    return AveragePrecision(**{"coordinates": alike(), **settings})  # pyrefly: ignore[bad-argument-type]


def by_coco(
    stated: Sequence[dict[str, Any]], references: Sequence[dict[str, Any]], thresholds: Sequence[float]
) -> float:
    """pycocotools' average precision, boxes of equal score in the order given."""
    coco = pytest.importorskip("pycocotools.coco").COCO()
    evaluator = pytest.importorskip("pycocotools.cocoeval").COCOeval
    labels = sorted({reference["label"] for reference in references})
    coco.dataset = {
        "info": {},
        "images": [{"id": 0, "width": 1000, "height": 1000}],
        "categories": [{"id": i, "name": label} for i, label in enumerate(labels)],
        "annotations": [
            entry(reference, labels) | {"id": i + 1, "iscrowd": 0} for i, reference in enumerate(references)
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        results = [entry(answer, labels) | {"score": answer["score"]} for answer in stated if answer["label"] in labels]
        if not results:
            return 0.0
        evaluation = evaluator(coco, coco.loadRes(results), "bbox")
        evaluation.params.iouThrs = np.array(thresholds)
        evaluation.evaluate()
        evaluation.accumulate()
    return float(evaluation.eval["precision"][:, :, :, 0, 2].mean())


def entry(item: dict[str, Any], labels: list[str]) -> dict[str, Any]:
    left, top, right, bottom = item["bbox"]
    box = [left, top, right - left, bottom - top]
    return {"image_id": 0, "category_id": labels.index(item["label"]), "bbox": box, "area": box[2] * box[3]}


def random_box(draw: random.Random, label: str) -> dict[str, Any]:
    left, top = draw.randint(0, 40), draw.randint(0, 40)
    box = [left, top, left + draw.randint(20, 40), top + draw.randint(20, 40)]
    return {"bbox": box, "label": label, "score": draw.random()}


def test_by_hand():
    # one of two found: the 51 recalls from 0 to 0.5 are reached with precision 1
    assert score_of(reward(), json.dumps([A]), [A, B]) == pytest.approx(51 / 101)
    # IoU 0.8 counts at 7 of the 10 thresholds: both found; at the other three one of two boxes hits one of two
    assert score_of(reward(), json.dumps([A, NEAR_B]), [A, B]) == pytest.approx(0.7 + 0.3 * 0.5 * 51 / 101)
    assert score_of(reward(threshold=0.5), json.dumps([A, NEAR_B]), [A, B]) == 1
    assert score_of(reward(threshold=0.81), json.dumps([NEAR_B]), [B]) == 0
    # two hits among three boxes: precision 2/3 at every recall, times the penalty 2/3
    assert score_of(reward(), json.dumps([A, B, FAR]), [A, B]) == pytest.approx(4 / 9)
    assert score_of(reward(length_power=0), json.dumps([A, B, FAR]), [A, B]) == pytest.approx(2 / 3)
    assert score_of(reward(), json.dumps([A, A]), [A]) == pytest.approx(0.25)  # a second box on it is a miss


def test_without_boxes():
    assert [score_of(reward(), text, []) for text in ("[]", "none", json.dumps([A]))] == [1, 1, 0]
    assert score_of(reward(), "[]", [A]) == 0
    assert score_of(reward(), "[]", "a dog") is None
    assert score_of(reward(), json.dumps([[10, 10, 0, 0]]), [A]) == 0


def test_stated_scores_order_the_boxes():
    answer = json.dumps([{"bbox": FAR, "score": 0.2}, {"bbox": A, "score": 0.9}])
    sure, unsure = reward(confidence="stated", length_power=0), reward(length_power=0)
    assert score_of(sure, answer, [A]) == 1
    assert score_of(unsure, answer, [A]) == 0.5
    wrong = json.dumps([{"bbox": FAR, "score": 0.9}, {"bbox": A, "score": 0.2}])
    assert score_of(sure, wrong, [A]) == 0.5
    without = json.dumps([{"bbox": A}, {"bbox": FAR, "score": 0.5}])
    assert score_of(sure, without, [A]) == 1  # no score is a score of 1


def test_classes_are_averaged():
    references = [{"bbox": A, "label": "dog"}, {"bbox": B, "label": "cat"}]
    answer = json.dumps([{"bbox": A, "label": "dog"}, {"bbox": B, "label": "dog"}])
    # dogs: precision 1/2 at every recall; cats: none found
    assert score_of(reward(), answer, references) == pytest.approx(0.25)
    assert score_of(reward(labels=False), answer, references) == 1
    assert score_of(reward(), answer, [A, {"bbox": B, "label": "cat"}]) == 1
    # a bird that no reference has is no false positive of a class, and costs by the penalty
    bird = json.dumps([{"bbox": A, "label": "dog"}, {"bbox": B, "label": "cat"}, {"bbox": C, "label": "bird"}])
    assert score_of(reward(length_power=0), bird, references) == 1
    assert score_of(reward(), bird, references) == pytest.approx(2 / 3)


@pytest.mark.nightly
def test_equal_to_coco_where_scores_differ():
    draw = random.Random(0)
    thresholds = [round(0.5 + 0.05 * step, 2) for step in range(10)]
    values = []
    for _ in range(60):
        references = [random_box(draw, draw.choice("ab")) for _ in range(draw.randint(1, 5))]
        stated = [moved(draw, draw.choice(references)) for _ in range(draw.randint(1, 7))]
        answer = json.dumps(stated)
        ours = score_of(reward(confidence="stated", length_power=0), answer, references)
        assert ours == pytest.approx(by_coco(stated, references, thresholds), abs=1e-9)
        at_half = score_of(reward(confidence="stated", length_power=0, threshold=0.5), answer, references)
        assert at_half == pytest.approx(by_coco(stated, references, [0.5]), abs=1e-9)
        values.append(ours)
    assert len(set(values)) > 30


def moved(draw: random.Random, item: dict[str, Any]) -> dict[str, Any]:
    return {
        "bbox": [edge + draw.randint(-4, 4) for edge in item["bbox"]],
        "label": item["label"],
        "score": draw.random(),
    }


def test_equal_scores_are_the_worst_order_of_coco():
    """Over every order; equal if the missing value is apart from every reference, so that it can come first."""
    draw = random.Random(1)
    references = [{"bbox": box, "label": "a"} for box in (A, B, C)]
    for _ in range(12):
        hits = [moved(draw, reference) | {"score": 1.0} for reference in draw.sample(references, draw.randint(1, 2))]
        misses = [{"bbox": FAR, "label": "a", "score": 1.0}] * draw.randint(0, 1)
        twice = [moved(draw, hits[0]) | {"score": 1.0}] * draw.randint(0, 1)
        ours, least = over_orders(hits + misses, references)
        assert ours == pytest.approx(least, abs=1e-9)
        ours, least = over_orders(hits + misses + twice, references)
        assert ours <= least + 1e-9


def over_orders(stated: list[dict[str, Any]], references: list[dict[str, Any]]) -> tuple[float, float]:
    """Our average precision at an IoU of 0.5, and the least of COCO's."""
    ours = score_of(reward(length_power=0, threshold=0.5), json.dumps(stated), references)
    return ours, min(by_coco(order, references, [0.5]) for order in permutations(stated))


def test_the_order_does_not_matter():
    draw = random.Random(2)
    for confidence in ("equal", "stated"):
        for _ in range(40):
            references = [random_box(draw, "a") for _ in range(4)]
            stated = [moved(draw, draw.choice(references)) | {"score": draw.choice((0.2, 0.8))} for _ in range(6)]
            value = score_of(reward(confidence=confidence), json.dumps(stated), references)
            shuffled = json.dumps(draw.sample(stated, len(stated)))
            assert score_of(reward(confidence=confidence), shuffled, draw.sample(references, len(references))) == value
            assert 0 <= value <= 1


def test_more_boxes_never_pay():
    scores = [score_of(reward(), json.dumps([A, *([FAR] * n)]), [A]) for n in range(4)]
    assert scores == [1, 0.25, pytest.approx(1 / 9), 0.0625]
    assert score_of(reward(max_boxes=3), json.dumps([A] * 4), [A]) == 0


def test_explanations_and_invalid_settings():
    answer = explained(reward(), wrote(json.dumps([A]), [B]))
    assert [(box["box"], box["role"]) for box in answer["boxes"]] == [(A, "stated"), (B, "reference")]
    assert explained(reward(max_boxes=1), wrote(json.dumps([A, B]), [A])) == {
        "boxes": [], "num_boxes": 2, "reason": "2 boxes, more than 1",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"threshold must be in \[0, 1\], got 50"):
        AveragePrecision(threshold=50)
    with pytest.raises(ConfigError, match="confidence must be one of equal, stated, got 'none'"):
        AveragePrecision(confidence="none")  # pyrefly: ignore[bad-argument-type]
