"""Tools: plain Python functions with docstrings that a language model may call between its turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from typing import Any, final
from uuid import UUID

from PIL import Image

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.system.targets import import_python_target
from mmgrpo.types import Prompt

OPENING, CLOSING = "<tool_call>", "</tool_call>"

DESCRIPTION = """\
You may call these functions:
<tools>
{schemas}
</tools>
To call one, write its name and arguments as JSON, and nothing after it:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


@final
class ToolEnvironment(Environment):
    """Calls the functions that a turn requests and answers with their results; a turn without calls ends the
    conversation.

    Calls have the format of Hermes and Qwen, ``<tool_call>{"name": .., "arguments": {..}}</tool_call>``. The answer
    to an invalid call, and to a function that raises, is ``{"error": ..}``. Functions have the form of transformers
    and TRL: annotated arguments, a docstring with ``Args:``. Its turns have no rewards.
    """

    gives_rewards = False

    def __init__(self, functions: Sequence[Callable[..., Any] | str], describe: bool = True) -> None:
        """Resolves the functions.

        Args:
            functions: the functions, or ``python:module:function`` of each.
            describe: whether ``reset`` appends their signatures to the prompt; a chat template with tool support
                takes them from ``policy.template: {tools: [..]}`` instead.

        Raises:
            ConfigError: there is no function, two have one name, or a signature cannot be described.
        """
        resolved = [import_python_target(function) if isinstance(function, str) else function for function in functions]
        self._functions: Mapping[str, Callable[..., Any]] = {function.__name__: function for function in resolved}
        if not resolved or len(self._functions) != len(resolved):
            raise ConfigError(f"tools must be one or more functions with distinct names, got {list(functions)}")
        self._describe = describe
        self._schemas = [schema_of(function) for function in resolved]

    def reset(self, prompt: Prompt) -> Turn:
        """The signatures of the functions, if ``describe`` is set."""
        return Turn(text=DESCRIPTION.format(schemas="\n".join(self._schemas)) if self._describe else "")

    def step(self, text: str) -> Turn:
        """The results of the called functions, in order, one line each."""
        calls = calls_in(text)
        if not calls:
            return Turn(done=True)
        return Turn(text="\n".join(self._returned(call) for call in calls), role="tool")

    def _returned(self, call: str) -> str:
        try:
            request = json.loads(call)
            name, arguments = request["name"], request.get("arguments", {})
            if name not in self._functions:
                raise KeyError(f"there is no function {name!r}; known are {', '.join(self._functions)}")
            result = self._functions[name](**arguments)
            if not _holds_image(result):
                return result if isinstance(result, str) else json.dumps(result, default=_plain)
        except (Exception, SystemExit) as error:  # the model sees the error and may correct its call
            return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
        raise ConfigError(
            f"the tool {name} returned an image; tools return text or JSON-serializable values. Return a description, "
            "or add images in Environment.reset"
        )


def calls_in(text: str) -> list[str]:
    """The text between each ``<tool_call>`` and the next ``</tool_call>``, in order, in linear time."""
    calls: list[str] = []
    for part in text.split(CLOSING)[:-1]:
        _, opening, call = part.partition(OPENING)
        if opening:
            calls.append(call.strip())
    return calls


def _holds_image(result: Any) -> bool:
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return any(map(_holds_image, result))
    return isinstance(result, Image.Image)


def _plain(value: Any) -> Any:
    """A JSON form of a value that JSON cannot encode: numbers and arrays of numpy and torch, dates, decimals and
    paths.
    """
    if hasattr(value, "tolist"):  # numpy and torch
        return value.tolist()
    if isinstance(value, date | time | Decimal | UUID | PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a tool must return a text or a JSON value; this one returned {type(value).__name__}")


@cache
def schema_of(function: Callable[..., Any]) -> str:
    """A function's signature as JSON. Raises ConfigError if annotations or the docstring are incomplete."""
    from transformers.utils import get_json_schema

    try:
        return json.dumps(get_json_schema(function)["function"])
    except Exception as error:  # of transformers' own, without a common base
        raise ConfigError(
            f"the tool {function.__name__} cannot be described: {error}; annotate its arguments and its result, and "
            "give it a docstring with a line for each under Args:"
        ) from error
