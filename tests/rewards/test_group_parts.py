from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from mmgrpo.rewards.groups.text_parts import Attempts, OnPart

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Scope, Score
from tests.rewards.grouped import column_score, members

TEXT = "seen <think> so </think> <answer> 7"


@pytest.mark.parametrize(
    ("start", "end", "text", "part"),
    [
        ("<think>", None, TEXT, "<think> so </think> <answer> 7"),
        (None, "<think>", TEXT, "seen "),
        ("<think>", "<answer>", TEXT, "<think> so </think> "),
        ("<think>", "<answer>", "so <answer> 7", "so "),  # without the mark from the beginning on
        ("<answer>", "</answer>", TEXT, "<answer> 7"),  # without the mark to the end
        (None, "seen", TEXT, ""),
    ],
)
def test_a_reward_is_the_score_of_its_part(start: str | None, end: str | None, text: str, part: str):
    (score,) = OnPart(column_score, start, end)(members(text, scores=[0.5]))
    assert float(score) == 0.5  # type: ignore[arg-type]
    begin = text.index(part)
    expected = [Scope(begin, begin + len(part), 0.5)] if part else []
    assert list(score.scopes) == expected  # type: ignore[union-attr]


def test_unscored_samples_have_no_part():
    result = OnPart(column_score, end="x")(members("a", None, "b", scores=[None, 1.0, math.nan]))
    assert result[:2] == [None, None]
    assert math.isnan(float(result[2]))  # type: ignore[arg-type]


def contains_seven(samples: Sequence[Sample]) -> list[float | None]:
    return [float("7" in (sample.text or "")) for sample in samples]


REFLECTION = "<reflection>Yes or no? yes</reflection>"
TRIED = f"it is 8 <reflection>Right? Yes</reflection> no, 7 {REFLECTION} "


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        # a wrong attempt that is checked as right, and a right one; the last word of a check counts
        (TRIED, [("it is 8 ", 0), ("<reflection>Right? Yes</reflection>", 0), (" no, 7 ", 1), (REFLECTION, 1)]),
        # a wrong one that is checked as wrong, and one that is not checked
        ("8<reflection>No</reflection>7", [("8", 0), ("<reflection>No</reflection>", 1), ("7", 1)]),
        # no word on it; a check that does not end
        ("7<reflection>?", [("7", 1), ("<reflection>?", 0)]),
        ("7", [("7", 1)]),
        # a check of nothing is part of what follows
        (" <reflection></reflection> 7", [(" <reflection></reflection> 7", 1)]),
    ],
)
def test_attempts_and_their_checks(text: str, parts: list[tuple[str, float]]):
    (score,) = Attempts(contains_seven)(members(text))
    assert isinstance(score, Score)
    assert [(text[scope.start : scope.end], scope.value) for scope in score.scopes or ()] == parts
    assert score.value == [value for part, value in parts if not part.startswith("<")][-1]


def test_attempts_that_are_not_scored():
    assert Attempts(column_score)(members("a", None, scores=[None, 1.0])) == [None, None]
    assert Attempts(column_score)(members("", scores=[1.0])) == [None]
    with pytest.raises(ConfigError, match="a verdict with a group"):
        Attempts(column_score, verdict="yes")


def test_a_part_has_a_mark():
    with pytest.raises(ConfigError, match="needs start, end or both"):
        OnPart(column_score)
