"""GenEval's checks over boxes, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from mmgrpo.rewards.images.compositional_prompts import COLORS, OBJECTS, TASKS, compositional_prompts
from mmgrpo.rewards.images.scenes import (
    FRAME,
    Clause,
    ClauseResults,
    DetectedObject,
    clauses_of,
    evaluate_clauses,
    relations,
    select_detections,
)
from mmgrpo.rewards.parsing.boxes import Box

from mmgrpo.errors import DataError


def box(left: float, top: float, right: float, bottom: float) -> Box:
    return Box(left, top, right, bottom, FRAME)


def thing(label: str, score: float = 0.9, at: tuple[float, float, float, float] = (0, 0, 10, 10)) -> DetectedObject:
    return DetectedObject(label, score, box(*at))


def by_score(group: Sequence[DetectedObject], clause: Clause) -> list[str]:
    """Stands for what a classifier sees: red above 0.5, blue below."""
    return ["red" if result.score > 0.5 else "blue" for result in group]


def clause_results(
    objects: Sequence[DetectedObject], include: list[dict], exclude: Sequence[dict] = ()
) -> ClauseResults:
    columns = {"include": include, "exclude": exclude}
    return evaluate_clauses(objects, clauses_of(columns, "include"), clauses_of(columns, "exclude"), by_score)


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ((0, 0, 10, 10), (100, 0, 110, 10), {"left of"}),
        ((100, 0, 110, 10), (0, 0, 10, 10), {"right of"}),
        ((0, 0, 10, 10), (0, 100, 10, 110), {"above"}),
        ((0, 100, 10, 110), (0, 0, 10, 10), {"below"}),
        ((0, 0, 10, 10), (100, 100, 110, 110), {"left of", "above"}),
        ((0, 0, 10, 10), (0, 0, 10, 10), set()),
        ((0, 0, 10, 10), (2, 0, 12, 10), set()),  # 2 apart, 0.1 * (10 + 10) is taken off: nothing is left
        ((0, 0, 10, 10), (4, 0, 14, 10), set()),  # 4 - 2 = 2, and 2 / 4 is not beyond 0.5
        ((0, 0, 10, 10), (5, 0, 15, 10), {"left of"}),  # 5 - 2 = 3, 3 / 5 = 0.6
        ((0, 0, 10, 10), (60, 20, 70, 30), {"left of"}),  # (58, 18) / 63.2: 0.92 and 0.28
    ],
)
def test_positions_of_a_box(first: tuple, other: tuple, expected: set[str]) -> None:
    assert relations(box(*first), box(*other)) == expected
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert relations(box(*other), box(*first)) == {opposite[name] for name in expected}


def test_count_is_at_least_the_included_and_below_the_excluded_number() -> None:
    two = [{"class": "dog", "count": 2}]
    three_are_too_many = [{"class": "dog", "count": 3}]
    assert clause_results([thing("dog")] * 2, two, three_are_too_many).satisfied == (True, True)
    assert clause_results([thing("dog")], two, three_are_too_many).satisfied == (False, True)
    assert clause_results([thing("dog")] * 3, two, three_are_too_many) == ClauseResults(
        satisfied=(True, False), reasons=("expected fewer than 3 dog, found 3",)
    )
    assert clause_results([thing("cat")] * 9, two).reasons == ("expected 2 dog, found 0",)


def test_attributes_are_of_the_surest_objects() -> None:
    red_dog = [{"class": "dog", "count": 1, "color": "red"}]
    assert clause_results([thing("dog", 0.9), thing("dog", 0.2)], red_dog).satisfied == (True,)
    assert clause_results([thing("dog", 0.4)], red_dog).reasons == ("expected red dog, found blue",)
    assert clause_results(
        [thing("dog", 0.9), thing("dog", 0.2)], [{"class": "dog", "count": 2, "colour": "red"}]
    ).satisfied == (False,)
    assert clause_results([thing("dog", 0.4)], [{"class": "dog", "attribute": "blue"}]).satisfied == (True,)


def test_positions_are_relative_to_an_earlier_satisfied_clause() -> None:
    clauses = [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["left of", 0]}]
    left, right = (0, 0, 10, 10), (50, 0, 60, 10)
    assert clause_results([thing("dog", at=left), thing("cat", at=right)], clauses).satisfied == (True, True)
    assert clause_results([thing("dog", at=right), thing("cat", at=left)], clauses) == ClauseResults(
        satisfied=(True, False), reasons=("expected dog left of cat, found it right of",)
    )
    assert clause_results([thing("dog", at=left)], clauses).reasons == (
        "expected 1 cat, found 0",
        "nothing for dog to be left of",
    )


def test_sure_objects_are_kept_one_by_one() -> None:
    near, far = (1, 0, 11, 10), (30, 0, 40, 10)  # the first overlaps (0, 0, 10, 10) by 90 of 110
    objects = [
        thing("dog", 0.5, near),
        thing("dog", 0.9),
        thing("dog", 0.3, far),
        thing("cat", 0.4, near),
        thing("dog", 0.1),
    ]

    def keep(**changed: Any) -> list[DetectedObject]:
        return select_detections(objects, **{"threshold": 0.2, "max_overlap": 0.5, "max_objects": 16, **changed})  # pyrefly: ignore[bad-argument-type]

    assert [(f.label, f.score) for f in keep()] == [("dog", 0.9), ("dog", 0.3), ("cat", 0.4)]
    assert [f.score for f in keep(max_overlap=1)] == [0.9, 0.5, 0.3, 0.4]
    assert [f.score for f in keep(max_overlap=0.9)] == [0.9, 0.5, 0.3, 0.4]
    assert [f.score for f in keep(max_objects=1)] == [0.9, 0.4]
    assert [f.score for f in keep(threshold=0.4)] == [0.9]


@pytest.mark.parametrize(
    "wrong",
    [
        [{"count": 1}],
        ["dog"],
        [{"class": "dog", "shape": "round"}],
        [{"class": "dog", "position": ["beside", 0]}],
        [{"class": "dog", "position": ["above", 0]}],
        [{"class": "cat"}, {"class": "dog", "position": ["above", 1]}],
    ],
)
def test_clauses_of_another_form_raise(wrong: list) -> None:
    with pytest.raises(DataError, match="column 'include'"):
        clauses_of({"include": wrong}, "include")


def test_clauses_with_empty_fields_are_read_as_datasets_store_them() -> None:
    stored = {"include": [{"class": "dog", "count": 2, "color": None, "position": None}], "exclude": None}
    assert clauses_of(stored, "include") == [Clause(label="dog", count=2)]
    assert clauses_of(stored, "exclude") == []


def test_prompts_state_their_clauses() -> None:
    prompts = compositional_prompts(per_task=30, seed=1)
    assert len({(p.columns["tag"], p.text) for p in prompts}) == len(prompts) > 150
    assert [p.columns["tag"] for p in prompts] == sorted((p.columns["tag"] for p in prompts), key=list(TASKS).index)
    for prompt in prompts:
        include, exclude = (clauses_of(prompt.columns, name) for name in ("include", "exclude"))
        for clause in include:
            assert clause.label in prompt.text
            assert clause.attribute is None or (clause.attribute in prompt.text and clause.attribute in COLORS)
            assert not (clause.label == "person" and clause.attribute)
        assert bool(exclude) == (prompt.columns["tag"] == "counting")
        if prompt.columns["tag"] == "position":
            anchor, placed = include
            assert prompt.text.index(placed.label) <= prompt.text.index(placed.relation or "")
            assert prompt.text.endswith(anchor.label)


def test_prompts_are_a_function_of_their_seed() -> None:
    texts = [[p.text for p in compositional_prompts(5, seed)] for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    (prompt,) = compositional_prompts(1, tasks=["counting"], objects=["bus", "person", "bus"], max_count=2)
    assert prompt.text in ("a photo of two buses", "a photo of two persons")
    assert prompt.columns["include"][0]["count"] == 2
    assert prompt.columns["exclude"][0]["count"] == 3
    assert len(OBJECTS) == len(set(OBJECTS)) == 80


def test_invalid_requests_for_prompts_raise() -> None:
    requests: list[dict[str, Any]] = [{"tasks": ["colours"]}, {"objects": ["dog", "person"]}, {"max_count": 11}]
    for wrong in requests:
        with pytest.raises(DataError, match="compositional prompts need"):
            compositional_prompts(1, **wrong)
