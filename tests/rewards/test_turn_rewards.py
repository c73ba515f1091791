"""The form of the turns of a conversation, and the sources that an answer cites."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from mmgrpo.rewards.text.citations import Citations
from mmgrpo.rewards.text.executed_calls import CallSuccess, RequiredCalls
from mmgrpo.rewards.text.turn_format import TurnFormat

from mmgrpo.errors import ConfigError
from mmgrpo.samples import ToolResult, Turn
from tests.rewards.written import explained, score_of, scores_of, wrote

TURNS = TurnFormat(every="<think>.*", earlier=".*</search>", last=".*</answer>", later="<think>so.*")


def conversation(*turns: str) -> Any:
    """A sample whose environment answers with a text that has no tags."""
    return replace(wrote("results ".join(turns)), turn_texts=list(turns))


def test_each_turn_matches_the_patterns_of_its_place() -> None:
    rows = [
        conversation("<think>a</think><search>b</search>", "<think>so</think><answer>c</answer>"),
        conversation("<think>a</think><answer>c</answer>"),
        conversation("<think>a</think><search>b</search>", "<think>no</think><answer>c</answer>"),  # later
        conversation("<think>a</think><answer>b</answer>", "<think>so</think><answer>c</answer>"),  # earlier
        conversation("<think>a</think><search>b</search>", "<think>so</think><search>c</search>"),  # last
        conversation("<search>b</search>", "<think>so</think><answer>c</answer>"),  # every
    ]
    assert scores_of(TURNS, rows) == [1, 1, 0, 0, 0, 0]
    assert explained(TURNS, rows[3])["reason"] == "turn 1 does not match 'earlier'"


def test_a_sample_without_turns_is_its_first_and_last_turn() -> None:
    assert score_of(TurnFormat(first="a.*", last=".*b"), " a\nb ") == 1
    assert score_of(TurnFormat(later="c"), "a") == 1
    assert score_of(TurnFormat(last="b"), "a") == 0
    assert score_of(TurnFormat(last="b", max_chars=3), "bbbb") == 0
    assert score_of(TurnFormat(last="b"), None) is None


def test_patterns_are_needed_and_checked() -> None:
    with pytest.raises(ConfigError, match="one or more of every, first"):
        TurnFormat()
    with pytest.raises(ConfigError, match=r"TurnFormat\.last is no regular expression"):
        TurnFormat(last="(")


@pytest.mark.parametrize(
    ("answer", "jaccard", "cover"),
    [
        ("[[Oslo_1]] and [[ Rome_2 ]]", 1, 1),
        ("[[Oslo_1]], [[Oslo_1]]", 1 / 2, 1 / 2),
        ("[[Oslo_1]] [[Rome_2]] [[Rome_3]]", 2 / 3, 1),
        ("[[Rome_3]] [[ ]] [Oslo_1]", 0, 0),
        ("none", 0, 0),
    ],
)
def test_cited_sources_are_compared_as_sets(answer: str, jaccard: float, cover: float) -> None:
    text, reference = f"[[Rome_2]] <answer>{answer}</answer>", ["Oslo_1", "Rome_2"]
    assert score_of(Citations(extract="tag"), text, reference) == pytest.approx(jaccard)
    assert score_of(Citations(extract="tag", measure="cover"), text, reference) == cover


def test_half_of_the_sources_is_rounded_up_and_an_empty_reference_is_covered() -> None:
    three = ["a", "b", "c"]
    assert score_of(Citations(measure="cover"), "[[a]]", three) == 0
    assert score_of(Citations(measure="cover"), "[[a]] [[b]]", three) == 0.5
    assert scores_of(Citations(measure="cover", column="evidence"), [wrote("[[x]]", evidence=[])]) == [1]
    assert scores_of(Citations(column="evidence"), [wrote("[[x]]", evidence=[]), wrote("[[x]]", evidence=None)]) == [
        0,
        None,
    ]
    assert Citations().reference_error("a") is not None


def called(*results: ToolResult, calls: Any = None) -> Any:
    """A conversation of one turn, whose answer has these results of calls."""
    sample = wrote("a", **({} if calls is None else {"answer": calls}))
    return replace(sample, turn_starts=[0], turn_ends=[1], turn_replies=[Turn(text="r", results=results)])


@pytest.mark.nightly
def test_share_of_calls_that_succeeded() -> None:
    good, bad, error = ToolResult("a", "1"), ToolResult("b", "x", failed=True), ToolResult("a", "Error: no")
    rows = [called(good, bad), called(good, error), called(error), called(), wrote("a")]
    assert scores_of(CallSuccess(), rows) == [0.5, 1, 1, 0, None]
    assert scores_of(CallSuccess(failure="^Error", measure="any"), rows) == [1, 1, 0, 0, None]
    assert scores_of(CallSuccess(tools=["b"]), rows[:2]) == [0, 0]
    assert explained(CallSuccess(), rows[0])["reason"] == "1 of 2 calls succeeded"
    slow = called(ToolResult("a", "a" * 40 + "b"))
    (value,) = scores_of(CallSuccess(failure="^(a|a)*$"), [slow])
    assert math.isnan(value or 0.0)
    wrong: list[dict[str, Any]] = [{"failure": "("}, {"measure": "most"}, {"tools": "a"}]
    for settings in wrong:
        with pytest.raises(ConfigError, match=r"CallSuccess\."):
            CallSuccess(**settings)


def test_required_calls_and_redundant_ones() -> None:
    calls = [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "parameters": {}}]
    a, b = ToolResult("a", "1", arguments={"x": 1}), ToolResult("b", "2")
    other = ToolResult("c", "3")
    rows = [called(a, b, other, calls=calls), called(a, calls=calls), called(a, a, b, calls=calls)]
    assert scores_of(RequiredCalls(), rows) == [1, 0, 0]
    assert scores_of(RequiredCalls(partial=True), rows) == [1, 0.5, 0]
    assert scores_of(RequiredCalls(tools=["a", "b", "c"]), rows[:1]) == [0]
    assert scores_of(RequiredCalls(), [wrote("a", calls), called(a)]) == [None, None]
    assert RequiredCalls().reference_error(7) is not None
    with pytest.raises(ConfigError, match="must be a list of names"):
        RequiredCalls(tools="a")


def test_other_marks_and_composed_characters() -> None:
    assert score_of(Citations(opening="(", closing=")"), "(caf\u0065\u0301)", ["caf\u00e9"]) == 1
    with pytest.raises(ConfigError, match="Citations needs texts"):
        Citations(opening="")
    with pytest.raises(ConfigError, match=r"Citations\.measure"):
        Citations(measure="most")  # pyrefly: ignore[bad-argument-type]
