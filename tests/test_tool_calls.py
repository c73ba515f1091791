"""Calls of tools in texts: their formats, their arguments, and the errors of those that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.tool_calls import (
    UNCLOSED_REASONING,
    FunctionCall,
    calls_in,
    checked_arguments,
    fenced_calls,
    without_calls,
)

SCHEMA: dict[str, Any] = {
    "name": "crop",
    "parameters": {
        "type": "object",
        "properties": {
            "box": {"type": "array", "items": {"type": "integer"}},
            "mode": {"type": "string", "enum": ["near", "far"]},
            "scale": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "label": {"type": "string", "nullable": True},
            "steps": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
            "either": {"type": ["integer", "number"]},
            "options": {
                "type": "object",
                "properties": {"fast": {"type": "boolean"}, "size": {"type": "integer"}},
                "required": ["fast"],
            },
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "entry": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
            "tree": {"$ref": "#/$defs/Node"},
        },
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer"},
                    "parts": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
                "required": ["size"],
            }
        },
        "required": ["box"],
    },
}


def test_json_calls_are_read_in_order() -> None:
    text = 'a <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> b <tool_call>\n{"name": "g"}\n</tool_call>'
    assert calls_in(text) == [FunctionCall("f", {"x": 1}), FunctionCall("g", {})]
    assert calls_in("no call") == []


def test_arguments_in_a_text_are_read() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>'
    assert calls_in(text) == [FunctionCall("f", {"x": 1})]


def test_xml_calls_are_typed_by_the_schema() -> None:
    text = (
        "<tool_call>\n<function=crop>\n<parameter=box>\n[1, 2]\n</parameter>\n<parameter=mode>\n12\n</parameter>\n"
        "<parameter=scale>\n0.5\n</parameter>\n</function>\n</tool_call>"
    )
    expected = FunctionCall("crop", {"box": [1, 2], "mode": "12", "scale": 0.5})
    assert calls_in(text, {"crop": SCHEMA}) == [expected]
    assert calls_in(text) == [FunctionCall("crop", {"box": "[1, 2]", "mode": "12", "scale": "0.5"})]
    (broken,) = calls_in("<tool_call><function=f><parameter=x>1</function></tool_call>")
    assert broken.error == "the parameter x is not closed by </parameter>"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "missing arguments: box"),
        (
            {"box": [1], "y": 2},
            "unknown arguments: y; expected are box, mode, scale, label, steps, either, options, counts, entry, tree",
        ),
        ({"box": "1"}, "box must be array, got '1'"),
        ({"box": [1, "2"]}, "box[1] must be integer, got '2'"),
        ({"box": [1.5]}, "box[0] must be integer, got 1.5"),
        ({"box": [float("inf")]}, "box[0] must be integer, got inf"),
        ({"box": [1], "steps": "x"}, "steps must be null, got 'x'"),
        ({"box": [1], "mode": "x"}, "mode must be one of near, far, got 'x'"),
        ({"box": [1], "scale": "x"}, "scale must be number, got 'x'"),
        ({"box": [1], "options": {}}, "options lacks fast"),
        ({"box": [1], "options": {"fast": 1}}, "options.fast must be boolean, got 1"),
        ({"box": [1], "counts": {"a": 1, "b": 1.5}}, "counts.b must be integer, got 1.5"),
        ({"box": [1], "entry": ["a", "b"]}, "entry[1] must be integer, got 'b'"),
        ({"box": [1], "tree": {"size": 1, "parts": [{}]}}, "tree.parts[0] lacks size"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError) as raised:
        checked_arguments(SCHEMA, arguments)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"box": [1, 2], "scale": 2.0}, None),
        ({"box": [], "scale": None, "label": None, "mode": "far", "options": {"fast": True}}, None),
        ({"box": [1.0, -2.0, 3]}, {"box": [1, -2, 3]}),
        (
            {"box": [], "steps": 5.0, "options": {"fast": True, "size": 1e3}},
            {"box": [], "steps": 5, "options": {"fast": True, "size": 1000}},
        ),
        ({"box": [], "steps": None, "either": 5.0}, None),
        (
            {"box": [], "counts": {"a": 2.0}, "entry": ["a", 3.0, 4.0]},
            {"box": [], "counts": {"a": 2}, "entry": ["a", 3, 4.0]},
        ),
        (
            {"box": [], "tree": {"size": 1.0, "parts": [{"size": 2.0}]}},
            {"box": [], "tree": {"size": 1, "parts": [{"size": 2}]}},
        ),
    ],
)
def test_numbers_of_integer_arguments_are_integers(arguments: dict[str, Any], expected: dict[str, Any] | None) -> None:
    """By JSON schema 5.0 is an integer; where other numbers are allowed it stays as it is."""
    assert repr(checked_arguments(SCHEMA, arguments)) == repr(expected or arguments)


class MeasuredText(str):
    """A text that counts the characters of its slices."""

    num_sliced = 0

    def __getitem__(self, key: Any) -> str:
        """A slice, which is a copy."""
        part = super().__getitem__(key)
        self.num_sliced += len(part)
        return part


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 200_000,
        '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * 100_000 + "</tool_call>",
        "<tool_call><function=f>" + "<parameter=a>" * 200_000 + "</tool_call>",
        "<tool_call></think>" * 200_000,
        "x" + "<think>" * 200_000,
    ],
    ids=["openings", "nesting", "parameters", "ends of thinking", "beginnings of thinking"],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    measured = MeasuredText(text)
    assert all(call.error for call in calls_in(measured))
    assert measured.num_sliced <= len(text)


F, G = '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "g"}</tool_call>'
WITH_TAG = '<tool_call>{"name": "run", "arguments": {"code": "print(\'</think>\')"}}</tool_call>'
RUN = FunctionCall("run", {"code": "print('</think>')"})


@pytest.mark.parametrize(
    ("text", "begins_in_reasoning", "expected"),
    [
        pytest.param(WITH_TAG, False, [RUN], id="tag in an argument"),
        pytest.param(f"<think>x</think>{F}{WITH_TAG}", False, [FunctionCall("f"), RUN], id="tag in a later argument"),
        pytest.param(f"x</think>{WITH_TAG}", True, [RUN], id="block of the prompt, tag in an argument"),
        pytest.param(f"<think>{F}</think>{G}", False, [FunctionCall("g")], id="call in a block"),
        pytest.param(f"{F}</think>{G}", False, [FunctionCall("g")], id="call in a block that the prompt opened"),
        pytest.param(f"a <tool_call>\n</think>\n{G}", False, [FunctionCall("g")], id="opening in such a block"),
        pytest.param(f"a <tool_call>\n</think>\n{G}", True, [FunctionCall("g")], id="opening in a block"),
        pytest.param(f"{F}<think>x {F}</think>{G}", False, [FunctionCall("f"), FunctionCall("g")], id="two blocks"),
        pytest.param(f"\n<think>x {F}", False, [FunctionCall(error=UNCLOSED_REASONING)], id="block without an end"),
        pytest.param(
            f"x {F}{G}", True, [FunctionCall(error=UNCLOSED_REASONING)], id="block of the prompt without an end"
        ),
        pytest.param("<think>x", False, [], id="block without an end or a call"),
        pytest.param(f"The tag <think> is {F}", False, [FunctionCall("f")], id="tag in the answer"),
    ],
)
def test_calls_are_those_of_the_answer(text: str, begins_in_reasoning: bool, expected: list[FunctionCall]) -> None:
    assert calls_in(text, begins_in_reasoning=begins_in_reasoning) == expected


def test_code_blocks_in_a_thinking_block_without_an_end_are_no_calls() -> None:
    run = {"name": "run", "parameters": {"properties": {"code": {"type": "string"}}}}
    block = "```python\nx\n```"
    for text, begins_in_reasoning, codes in (
        (f"<think>a {block}", False, []),
        (f"a {block}", True, []),
        (f"a {block}</think>{block}", True, ["x\n"]),
        (block, False, ["x\n"]),
    ):
        calls = fenced_calls(text, {"python": "run"}, {"run": run}, begins_in_reasoning=begins_in_reasoning)
        assert [call.arguments["code"] for call in calls] == codes


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("4", "4"),
        (f"a {WITH_TAG}", "a"),
        ('<tool_call>\n{"name": "f"}\n</tool_call>', ""),
        ("I look.\n<tool_call>a</tool_call>\n<tool_call>b</tool_call>\nThen", "I look.\nThen"),
        (
            "<think><tool_call>a</tool_call></think>\n\nx\n<tool_call>b</tool_call>",
            "<think><tool_call>a</tool_call></think>\n\nx",
        ),
        ("x <tool_call>a", "x <tool_call>a"),
    ],
)
def test_contents_of_messages_have_no_calls(text: str, content: str) -> None:
    assert without_calls(text) == content
