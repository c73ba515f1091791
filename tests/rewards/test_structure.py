from __future__ import annotations

import math
from typing import Any

import pytest
from mmgrpo.rewards.text.structure import Format, JsonSchema

from mmgrpo.errors import ConfigError
from tests.rewards.written import score_of

GOOD = "<think>a\nb</think>\n<answer>5</answer>\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, 1),
        ("<think>a < b</think><answer><b>5</b></answer>", 1),
        (GOOD + "and more", 0),
        ("Well, " + GOOD, 0),
        ("<think>a</think> so <answer>5</answer>", 0),
        (GOOD + GOOD, 0),
        ("<answer>5</answer><think>a</think>", 0),
        ("<think>a<answer>5</answer></think>", 0),
        ("<think><think>a</think></think><answer>5</answer>", 0),
        ("<think>a</think><answer>5</answer></answer>", 0),
        ("<think> </think><answer>5</answer>", 0),
        ("<think>a</think><answer></answer>", 0),
        ("<think>a</think><answer>5", 0),
        ("<THINK>a</THINK><answer>5</answer>", 0),
        ("", 0),
    ],
)
def test_only_tags_once_in_order_score(text: str, value: float):
    assert score_of(Format(), text) == value


def test_custom_tags_and_a_tag_opened_by_the_template():
    assert score_of(Format(tags=["plan", "code"]), "<plan>a</plan><code>b</code>") == 1
    assert score_of(Format(opened=True), "a</think><answer>5</answer>") == 1
    assert score_of(Format(opened=True), GOOD) == 0
    assert score_of(Format(), None) is None


def test_a_pattern_matches_the_complete_text():
    reward = Format(pattern=r"Answer: \d+")
    assert [score_of(reward, text) for text in ("Answer: 12\n", "Answer: 12.", "The Answer: 12", "")] == [1, 0, 0, 0]
    assert score_of(Format(pattern="a.*b"), "a\nb") == 1
    assert score_of(Format(pattern="a*", max_chars=3), "aaaa") == 0


@pytest.mark.nightly
def test_an_exponential_pattern_fails_on_the_text_and_ends():
    assert math.isnan(score_of(Format(pattern="(a|aa)+(?<!a)$|(.|a)+\\d(a|aa)+b"), "a" * 60 + "1" + "a" * 60))


PERSON = {"name": "string", "age": "integer|null", "boxes": "array?", "pet": {"kind": "string", "legs": "number"}}


@pytest.mark.parametrize(
    ("text", "complete", "part"),
    [
        ('{"name": "a", "age": 3, "boxes": [], "pet": {"kind": "dog", "legs": 4}}', 1, 1),
        ('```json\n{"name": "a", "age": null, "pet": {"kind": "dog", "legs": 3.5}, "x": 1}\n```', 1, 1),
        ('{"name": "a", "age": 3.5, "boxes": {}, "pet": {"kind": "dog", "legs": true}}', 0, 2 / 5),
        ('{"name": "a", "age": 3, "pet": "dog"}', 0, 3 / 5),
        ('{"name": 1}', 0, 1 / 5),  # boxes may be missing
        ('Here: {"name": "a", "age": 3, "pet": {"kind": "dog", "legs": 4}}', 0, 0),
        ('[{"name": "a"}]', 0, 0),
        ("", 0, 0),
    ],
)
def test_keys_and_types(text: str, complete: float, part: float):
    assert score_of(JsonSchema(PERSON), text) == complete
    assert score_of(JsonSchema(PERSON, partial=True), text) == pytest.approx(part)


def test_position_and_further_keys_of_the_object():
    keys = {"a": {"b": "any"}}
    assert score_of(JsonSchema(keys, anywhere=True), "First {'a': 1}, then {'a': {'b': None}} and [1].") == 1
    assert score_of(JsonSchema(keys, extract="tag"), 'x <answer>{"a": {"b": 1}}</answer>') == 1
    for text, value in (('{"a": {"b": 1}, "c": 2}', 0), ('{"a": {"b": 1, "c": 2}}', 0), ('{"a": {"b": {"c": 2}}}', 1)):
        assert score_of(JsonSchema(keys, strict=True), text) == value
        assert score_of(JsonSchema(keys), text) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Format(tags="think"), "different names such as"),
        (lambda: Format(tags=["a", "a"]), "different names such as"),
        (lambda: Format(pattern="(a"), "no regular expression: missing"),
        (lambda: JsonSchema({}), "keys must map keys to types"),
        (lambda: JsonSchema({"a": {"b": "text"}}), r"keys\.a\.b must be one of string, integer"),
    ],
)
def test_settings_are_checked(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()
