from __future__ import annotations

import json
import random
from typing import Any

import pytest
from mmgrpo.rewards.grounding.localization import BoxIou
from mmgrpo.rewards.parsing import extraction as parsing
from mmgrpo.rewards.parsing.extraction import Extract, extract_answer, json_document, json_values, normalize_text, words
from mmgrpo.rewards.text.answers import ExactMatch

from mmgrpo.errors import ConfigError
from tests.rewards.written import scores_of, wrote


@pytest.mark.parametrize(
    ("how", "text", "answer"),
    [
        ("none", " a\nb ", "a\nb"),
        ("line", "so\n\n 12 \n \n", "12"),
        ("line", " \n", None),
        ("tag", "<answer>1</answer> no: <answer> 2\n</answer> done", "2"),
        ("tag", "<answer>1</answer><answer>2", "1"),
        ("tag", "<answer><answer>3</answer></answer>", "3"),
        ("tag", "</answer> 3 <answer>", None),
        ("tag", "3", None),
        ("boxed", r"\boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed{a \} b}", r"a \} b"),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"\boxed{1", None),
        ("boxed", "12", None),
        ("none", "<think>3?</think> 4", "4"),
        ("none", "4 <think>or 3", "4"),
        ("line", "<think>3\n", None),
        ("tag", "<think><answer>3</answer></think> 4", None),
        ("tag", "<think><answer>3</answer></think><answer>4</answer>", "4"),
        ("tag", "<think>so <answer>3</answer>", None),
        ("boxed", r"</think>\boxed{1}</think>\boxed{2}", "2"),
        ({"tag": "rephrase"}, "<rephrase>a</rephrase><answer>b</answer>", "a"),
        ({"tag": "rephrase"}, "<rephrase>a</rephrase><rephrase> c\n</rephrase><rephrase>", "c"),
        ({"tag": "rephrase"}, "<answer>b</answer>", None),
        ({"tag": "answer"}, "<think><answer>3</answer></think> 4", "3"),
        ({"tag": "think"}, "<think>so</think><answer>3</answer>", "so"),
        ({"tag": "think"}, "<think>so", None),
    ],
)
def test_extraction(how: Extract, text: str, answer: str | None):
    assert extract_answer(text, how) == answer


@pytest.mark.parametrize("extract", ["tags", {"tag": ""}, {"tag": "a>"}, {"tag": 3}, {"name": "a"}, {}])
def test_unknown_extractions_raise(extract: Any):
    with pytest.raises(ConfigError, match=r"ExactMatch\.extract must be"):
        ExactMatch(extract=extract)


def test_rewards_read_parts_of_their_own():
    sample = wrote("<where>[0, 0, 1, 1]</where><answer>blue</answer>", "blue", box=[0, 0, 1, 1])
    alike = {"frame": "norm1", "reference_frame": "norm1"}
    assert scores_of(BoxIou(column="box", extract={"tag": "where"}, coordinates=alike), [sample]) == [1]
    assert scores_of(BoxIou(column="box", extract="tag", coordinates=alike), [sample]) == [0]
    assert scores_of(ExactMatch(extract={"tag": "answer"}), [sample]) == [1]
    assert scores_of(ExactMatch(extract={"tag": "where"}), [sample]) == [0]


def test_normalization():
    assert normalize_text("  \uff26ull\u00a0 width\n\u00b2  ") == "full width 2"
    assert normalize_text("Straße") == "strasse"
    assert normalize_text("Cafe\u0301", ignore_case=False) == "Caf\u00e9"
    assert normalize_text("a" * parsing.MAX_ANSWER_CHARS) is not None
    assert normalize_text("a" * (parsing.MAX_ANSWER_CHARS + 1)) is None


def test_words():
    assert words("It's a polar_bear -- or 2 Bears?") == ["it's", "a", "polar", "bear", "or", "2", "bears"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('Sure: ```json\n{"a": [1, 2.5]}\n``` done', [{"a": [1, 2.5]}]),
        ("[1] and [2, [3]]", [[1], [2, [3]]]),
        ("unclosed [ before [1, 2]", [[1, 2]]),
        ("crossed [1, {2] } then [3]", [[3]]),
        ('a 24" box [1], a "quote" [2]', [[1], [2]]),
        ('["]", "\\"]", "[["]', [["]", '"]', "[["]]),
        ("{'a': (1, 2), 'b': None, 'c': [True, False,],}", [{"a": [1, 2], "b": None, "c": [True, False]}]),
        ("{'it\\'s': 'a \"b\"'}", [{"it's": 'a "b"'}]),
        ("(3, 4)", [[3, 4]]),
        ("{'True': 'None, (x,)'}", [{"True": "None, (x,)"}]),
        ("[NaN]", []),
        ("[Infinity, 1]", []),
        ("[1e999]", []),
        ("[" + "9" * 301 + "]", []),
        ("[__import__('os').system('true')]", []),
        ("no brackets", []),
        ('{"a": 1, "a": 2}', [{"a": 2}]),
    ],
)
def test_json_is_found_anywhere(text: str, values: list[object]):
    assert json_values(text) == values


def test_depth_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch):
    depth = parsing.MAX_JSON_DEPTH
    assert json_values("[" * depth + "]" * depth) == [json.loads("[" * depth + "]" * depth)]
    assert json_values("[" * (depth + 1) + "]" * (depth + 1)) == []
    monkeypatch.setattr(parsing, "MAX_JSON_CHARS", 9)
    assert json_values("[1, 2, 3] [1, 2, 3, 4]") == [[1, 2, 3]]


def test_a_document_is_alone():
    assert json_document(' {"a": 1}\n') == {"a": 1}
    assert json_document('```json\n{"a": 1}\n```') == {"a": 1}
    assert json_document("```\n[1]\n```") == [1]
    assert json_document('Here: {"a": 1}') is None
    assert json_document("[1] [2]") is None
    assert json_document("{'a': 1}") is None
    assert json_document("``````") is None


def test_any_json_is_parsed_completely():
    """Seeded: a random value, written as JSON or as Python prints it, between brackets and quotes that do not close."""
    draw = random.Random(0)
    for _ in range(300):
        value = [random_value(draw, 3)]
        assert json_values(f"a) ]' {json.dumps(value)} [ {{ (") == [value]
        assert json_values(f'a) ]" {value!r} [ {{ (') == [value]


def random_value(draw: random.Random, depth: int) -> object:
    kind = draw.randrange(7 if depth else 5)
    if kind == 5:
        return [random_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        return {random_text(draw): random_value(draw, depth - 1) for _ in range(draw.randrange(1, 4))}
    return [draw.randrange(-99, 99), draw.random(), random_text(draw), None, draw.random() < 0.5][kind]


def random_text(draw: random.Random) -> str:
    return "".join(draw.choice("ab é,.'[]{}()\"") for _ in range(draw.randrange(6)))
