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

IMAGE = "(image)"
"""Text in place of an image inside a result."""

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
    and TRL: annotated arguments, a docstring with ``Args:``. They return text, what JSON can hold, and PIL images,
    alone or inside lists and mappings; the images are those of the turn. Its turns have no rewards.
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
        """The results of the called functions, in order, one line each, and their images."""
        calls = calls_in(text)
        if not calls:
            return Turn(done=True)
        results = [self._returned(call) for call in calls]
        text = "\n".join(text for text, _ in results if text)
        return Turn(text=text, images=[image for _, images in results for image in images], role="tool")

    def _returned(self, call: str) -> tuple[str, list[Image.Image]]:
        """The text and the images of a call's result; the error as text, so that the model may correct its call."""
        try:
            request = json.loads(call)
            name, arguments = request["name"], request.get("arguments", {})
            if name not in self._functions:
                raise KeyError(f"there is no function {name!r}; known are {', '.join(self._functions)}")
            images: list[Image.Image] = []
            result = _without_images(self._functions[name](**arguments), images)
            if images and result == IMAGE:
                return "", images
            return result if isinstance(result, str) else json.dumps(result, default=_plain), images
        except (Exception, SystemExit) as error:
            return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}), []


def calls_in(text: str) -> list[str]:
    """The text between each ``<tool_call>`` and the next ``</tool_call>``, in order, in linear time."""
    calls: list[str] = []
    for part in text.split(CLOSING)[:-1]:
        _, opening, call = part.partition(OPENING)
        if opening:
            calls.append(call.strip())
    return calls


def _without_images(result: Any, images: list[Image.Image]) -> Any:
    """The result with ``IMAGE`` in place of each image, which is appended to ``images``."""
    if isinstance(result, Image.Image):
        images.append(result)
        return IMAGE
    if isinstance(result, Mapping):
        return {key: _without_images(value, images) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [_without_images(value, images) for value in result]
    return result


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
