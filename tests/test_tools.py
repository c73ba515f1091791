"""Functions that a model calls: what is asked, what is told, and what cannot be called."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.tools import ToolEnvironment
from mmgrpo.types import Prompt


def divide(a: int, b: int) -> float:
    """Divides.

    Args:
        a: what is divided.
        b: by what.

    Returns:
        The quotient.
    """
    return a / b


def place(city: str) -> str:
    """Says where a city is.

    Args:
        city: its name.

    Returns:
        The country.
    """
    return {"Oslo": "Norway"}[city]


def bare(x):
    return x


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_calls_return_their_results() -> None:
    tools = ToolEnvironment([divide, place])
    turn = tools.step(f"First {call('divide', a=3, b=4)} and {call('place', city='Oslo')}")
    assert (turn.text, turn.role, turn.done, turn.reward) == ("0.75\nNorway", "tool", False, None)
    assert tools.step("It is 0.75.").done


def test_signatures_follow_the_prompt() -> None:
    text = ToolEnvironment([divide]).reset(Prompt("3 / 4?")).text
    schema = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])
    assert schema["name"] == "divide"
    assert schema["parameters"]["required"] == ["a", "b"]
    assert schema["parameters"]["properties"]["b"] == {"type": "integer", "description": "by what."}
    assert '{"name": "...", "arguments": {...}}' in text
    assert ToolEnvironment([divide], describe=False).reset(Prompt("3 / 4?")).ends


def test_functions_may_be_named() -> None:
    tools = ToolEnvironment(["python:tests.test_tools:divide"])
    assert tools.step(call("divide", a=1, b=2)).text == "0.5"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (call("divide", a=1, b=0), "ZeroDivisionError: division by zero"),
        (call("multiply", a=1, b=0), "there is no function 'multiply'; known are divide, place"),
        (call("divide", a=1), "missing 1 required positional argument: 'b'"),
        ("<tool_call>divide(1, 2)</tool_call>", "JSONDecodeError"),
        ("<tool_call>[1]</tool_call>", "TypeError"),
        ('<tool_call>{"name": "divide", "arguments": [1, 2]}</tool_call>', "must be a mapping"),
    ],
)
def test_errors_of_calls_are_returned(text: str, told: str) -> None:
    turn = ToolEnvironment([divide, place]).step(text)
    assert not turn.done
    assert told in json.loads(turn.text)["error"]


def test_invalid_tools_raise() -> None:
    with pytest.raises(ConfigError, match="one or more functions"):
        ToolEnvironment([])
    with pytest.raises(ConfigError, match="with distinct names"):
        ToolEnvironment([divide, divide])
    with pytest.raises(ConfigError, match=r"the tool bare cannot be described: .*annotate its arguments"):
        ToolEnvironment([bare])


def patch(color: str) -> Image.Image:
    """Returns a colored patch.

    Args:
        color: its color.

    Returns:
        The image.
    """
    return Image.new("RGB", (4, 4), color)


def described_patch(color: str) -> dict[str, Any]:
    """Returns a colored patch with its name.

    Args:
        color: its color.

    Returns:
        The name and the image.
    """
    return {"name": color, "views": [patch(color), patch("white")]}


def test_images_of_results_are_those_of_the_turn() -> None:
    tools = ToolEnvironment([patch, described_patch])
    turn = tools.step(call("patch", color="red") + call("described_patch", color="blue") + call("patch", color="no"))
    colors = [image.getpixel((0, 0)) for image in turn.images]
    assert colors == [(255, 0, 0), (0, 0, 255), (255, 255, 255)]
    described, error = turn.text.split("\n")
    assert json.loads(described) == {"name": "blue", "views": ["(image)", "(image)"]}
    assert "unknown color specifier: 'no'" in json.loads(error)["error"]
    alone = tools.step(call("patch", color="red"))
    assert (alone.text, len(alone.images), alone.role, alone.ends) == ("", 1, "tool", False)
