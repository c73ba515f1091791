"""Calls of tools in texts: their formats, their arguments, and the errors of those that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.tool_calls import FunctionCall, calls_in, checked_arguments, without_calls

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
        ({"box": [1], "y": 2}, "unknown arguments: y; expected are box, mode, scale, label, steps, either, options"),
        ({"box": "1"}, "box must be array, got '1'"),
        ({"box": [1, "2"]}, "box[1] must be integer, got '2'"),
        ({"box": [1.5]}, "box[0] must be integer, got 1.5"),
        ({"box": [float("inf")]}, "box[0] must be integer, got inf"),
        ({"box": [1], "steps": "x"}, "steps must be null, got 'x'"),
        ({"box": [1], "mode": "x"}, "mode must be one of near, far, got 'x'"),
        ({"box": [1], "scale": "x"}, "scale must be number, got 'x'"),
        ({"box": [1], "options": {}}, "options lacks fast"),
        ({"box": [1], "options": {"fast": 1}}, "options.fast must be boolean, got 1"),
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
    ],
)
def test_numbers_of_integer_arguments_are_integers(arguments: dict[str, Any], expected: dict[str, Any] | None) -> None:
    """By JSON schema 5.0 is an integer; where other numbers are allowed it stays as it is."""
    assert repr(checked_arguments(SCHEMA, arguments)) == repr(expected or arguments)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 200_000,
        '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * 100_000 + "</tool_call>",
        "<tool_call><function=f>" + "<parameter=a>" * 200_000 + "</tool_call>",
    ],
    ids=["openings", "nesting", "parameters"],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    assert all(call.error for call in calls_in(text))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("4", "4"),
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
