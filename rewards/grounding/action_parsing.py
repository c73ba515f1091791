"""Parses actions of GUI agents from model text, as JSON or as function calls, without executing any of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..parsing.coordinates import parse_boxes, parse_points
from ..parsing.extraction import finite, json_values

MAX_ACTIONS = 100
MAX_DEPTH = 8

_KIND_KEYS = ("action", "action_type", "name", "type")
_POSITION_KEYS = ("coordinate", "coordinates", "point", "point_2d", "position", "start_box", "start_point")
_END_KEYS = ("end_point", "end_box", "end_coordinate", "coordinate2", "end")
_ELEMENT_KEYS = ("element", "element_id", "index")
_BOX_KEYS = ("bbox", "gt_bbox", "bbox_2d", "box")
_TEXT_KEYS = ("text", "input_text", "content", "value", "direction", "app_name", "app", "key", "keys", "status")
_ARGUMENT_KEYS = ("arguments", "args", "parameters", "action_input", "action_args")
_NO_TEXT = frozenset(("no input text", "no input", "none"))

ALIASES: Mapping[str, str] = {
    "tap": "click",
    "left_click": "click",
    "left_single": "click",
    "single_click": "click",
    "doubleclick": "double_click",
    "left_double": "double_click",
    "double_tap": "double_click",
    "rightclick": "right_click",
    "right_single": "right_click",
    "longpress": "long_press",
    "left_click_drag": "drag",
    "input": "type",
    "input_text": "type",
    "type_text": "type",
    "enter_text": "type",
    "write": "type",
    "open": "open_app",
    "launch": "open_app",
    "launch_app": "open_app",
    "home": "press_home",
    "back": "press_back",
    "navigate_home": "press_home",
    "navigate_back": "press_back",
    "finish": "finished",
    "done": "finished",
    "complete": "finished",
    "terminate": "finished",
}
"""Alternative names of actions in common data sets and models."""

_VALUE = (
    r"'(?:[^'\\]|\\.){0,2000}+'|\"(?:[^\"\\]|\\.){0,2000}+\"|[-+]?\d[\d.]{0,20}+"
    r"|[\[(][-+\d.,\s]{1,100}+[\])]|True|False|None|true|false|null"
)
_ARGUMENT = re.compile(
    rf"\s{{0,8}}+(?:(?P<key>[A-Za-z_]\w{{0,40}}+)\s{{0,8}}+=\s{{0,8}}+)?(?P<value>{_VALUE})", re.DOTALL
)
_CALL = re.compile(r"(?<![\w.])(?:[A-Za-z]\w{0,40}+\.){0,3}(?P<name>[A-Za-z]\w{0,40}+)\(")
_NEXT = re.compile(r"\s{0,8}+(?P<mark>[,)])")
_MAX_ARGUMENTS = 10


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a GUI agent.

    Attributes:
        kind: canonical name of the action in lower case.
        point: position, without a coordinate frame.
        box: position as a box; its center is used.
        text: typed text, direction, key, or name of the application.
        end: position where a drag ends, without a coordinate frame.
        element: number of an element of a page, in place of a position.
    """

    kind: str
    point: tuple[float, float] | None = None
    box: tuple[float, float, float, float] | None = None
    text: str | None = None
    end: tuple[float, float] | None = None
    element: int | None = None

    @property
    def position(self) -> tuple[float, float] | None:
        """The point, or the center of the box."""
        if self.point is not None or self.box is None:
            return self.point
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


def parse_actions(source: Any) -> list[Action]:
    """Parse the actions in a text, or in the value of a data row, in order, at most ``MAX_ACTIONS``.

    Parsed are JSON objects such as ``{"action": "click", "coordinate": [x, y], "text": ".."}``, also with nested
    arguments (``{"name": "computer_use", "arguments": {..}}``), or, without any, calls such as ``click(x=1, y=2)``,
    ``pyautogui.click(1, 2)`` or ``type(content='..')``.
    """
    values = json_values(source) if isinstance(source, str) else source
    actions = _take_actions(_from_json(values, 0))
    return actions or (_take_actions(_from_calls(source)) if isinstance(source, str) else [])


def _take_actions(actions: Iterator[Action]) -> list[Action]:
    return [action for _, action in zip(range(MAX_ACTIONS), actions, strict=False)]


def _from_json(value: Any, depth: int) -> Iterator[Action]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _from_json(inner, depth + 1)
    elif isinstance(value, Mapping):
        nested = next((value[key] for key in _ARGUMENT_KEYS if isinstance(value.get(key), Mapping)), {})
        candidates = ((nested, _KIND_KEYS[:2]), (value, _KIND_KEYS))  # inside arguments "name" may refer to anything
        kind = next(
            (mapping[key] for mapping, keys in candidates for key in keys if _is_action_name(mapping.get(key))), None
        )
        if kind is not None:
            yield _action(kind, {**value, **nested})
            return
        for inner in value.values():
            yield from _from_json(inner, depth + 1)


def _is_action_name(value: Any) -> bool:
    return isinstance(value, str) and value != "function"  # the type of tool calls


def _from_calls(text: str) -> Iterator[Action]:
    end = 0
    for call in _CALL.finditer(text):
        if call.start() < end:
            continue
        arguments, end = _arguments(text, call.end())
        if arguments is not None:
            yield _action_from_call(call["name"], arguments)


def _arguments(text: str, start: int) -> tuple[list[tuple[str | None, Any]] | None, int]:
    """Key and value of the arguments after the bracket before ``start``, None if malformed; and the end position."""
    arguments: list[tuple[str | None, Any]] = []
    closing = _NEXT.match(text, start)
    if closing is not None and closing["mark"] == ")":
        return arguments, closing.end()
    at = start
    for _ in range(_MAX_ARGUMENTS):
        argument = _ARGUMENT.match(text, at)
        mark = None if argument is None else _NEXT.match(text, argument.end())
        if argument is None or mark is None:
            return None, start
        arguments.append((argument["key"], _value(argument["value"])))
        if mark["mark"] == ")":
            return arguments, mark.end()
        at = mark.end()
    return None, start


def _value(written: str) -> Any:
    """A string without quotes, a number, or the numbers of a list."""
    if written[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", written[1:-1], flags=re.DOTALL)
    if written[0] in "[(":
        return next(iter(json_values(written)), None)
    digits = json_values(f"[{written.removeprefix('+')}]")
    return digits[0][0] if digits and digits[0] else None


def _action_from_call(name: str, arguments: list[tuple[str | None, Any]]) -> Action:
    """Build an action; positional numbers are x and y, a positional list is a point, a positional string the text."""
    named = {key: value for key, value in arguments if key is not None}
    bare = [value for key, value in arguments if key is None]
    numbers = [value for value in bare if finite(value) is not None]
    if len(numbers) >= 2:
        named = {"coordinate": numbers[:2]} | named
    lists = [value for value in bare if isinstance(value, list)]
    texts = [value for value in bare if isinstance(value, str)]
    named = ({"coordinate": lists[0]} if lists else {}) | ({"text": texts[0]} if texts else {}) | named
    return _action(name, named)


def _action(kind: str, fields: Mapping[str, Any]) -> Action:
    plain = re.sub(r"[\s-]+", "_", kind.strip().lower())[:40]
    written = next((fields[key] for key in _TEXT_KEYS if isinstance(fields.get(key), str | int | float)), None)
    text = None if written is None or isinstance(written, bool) else str(written)
    point, box = _point_and_box(_position_value(fields))
    end = Action("", *_point_and_box(next((fields[key] for key in _END_KEYS if fields.get(key) is not None), None)))
    named = None if text is None or not text.strip() or text.strip().lower() in _NO_TEXT else text
    element = next((number for key in _ELEMENT_KEYS if (number := _integer(fields.get(key))) is not None), None)
    return Action(ALIASES.get(plain, plain), point, box, named, end.position, element)


def _integer(value: Any) -> int | None:
    """An integer of at least 0, also written as 3.0, or its text; None for another value."""
    text = str(value).removesuffix(".0") if isinstance(value, int | float | str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _position_value(fields: Mapping[str, Any]) -> Any:
    """The value of the first key of a position, or x and y."""
    value = next((fields[key] for key in (*_POSITION_KEYS, *_BOX_KEYS) if fields.get(key) is not None), None)
    if value is None and fields.get("x") is not None and fields.get("y") is not None:
        return [fields["x"], fields["y"]]
    return value


def _point_and_box(value: Any) -> tuple[tuple[float, float] | None, tuple[float, float, float, float] | None]:
    """A point, or a box."""
    written = value if isinstance(value, str) else str(list(value)) if isinstance(value, list | tuple) else ""
    points = parse_points(written) if len(written) <= 200 else []
    boxes = parse_boxes(written) if len(written) <= 200 and len(points) != 1 else []
    return points[0] if len(points) == 1 else None, boxes[0].numbers if len(boxes) == 1 else None
