"""Tools: plain Python functions with docstrings that a language model may call between its turns."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
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
    and TRL: annotated arguments, a docstring with ``Args:``; they may be coroutine functions, and the coroutines of a
    turn run side by side. They return text, JSON values, PIL images, alone or inside lists and mappings, or content
    blocks, ``[{"type": "image", "image": ..}, {"type": "text", "text": ..}]``; the images are those of the turn. Its
    turns have no rewards.
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
            names = [getattr(function, "__name__", function) for function in resolved]
            raise ConfigError(f"tools must be one or more functions with distinct names, got {names}")
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
        results = _awaited([self._called(call) for call in calls])
        texts, images = [], list[Image.Image]()
        for result in results:
            try:
                if isinstance(result, BaseException):
                    raise result
                texts.append(_text_of(result, images))
            except (Exception, SystemExit) as error:  # the model reads the error and may correct its call
                texts.append(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}))
        return Turn(text="\n".join(filter(None, texts)), images=images, role="tool")

    def _called(self, call: str) -> Any:
        """The result of a call, or its coroutine, or the error."""
        try:
            request = json.loads(call)
            name, arguments = request["name"], request.get("arguments", {})
            if name not in self._functions:
                raise KeyError(f"there is no function {name!r}; known are {', '.join(self._functions)}")
            return self._functions[name](**arguments)
        except (Exception, SystemExit) as error:
            return error


@final
class ToolObjectEnvironment(Environment):
    """The public methods of an object that each conversation creates, as tools: TRL's ``environment_factory``.

    ``reset`` of the object receives the columns of the row and returns None, or a text or content blocks to append to
    the prompt. ``get_reward``, if it exists, is the reward of the turn that ends the conversation; ``close``, if it
    exists, is called after it. The other public methods are the tools, in the form of ``ToolEnvironment``.
    """

    def __init__(
        self,
        factory: Callable[[], Any] | str,
        functions: Sequence[Callable[..., Any] | str] = (),
        describe: bool = True,
    ) -> None:
        """Creates the object.

        Args:
            factory: returns the object, or ``python:module:Class``.
            functions: further tools, as those of ``ToolEnvironment``.
            describe: likewise.

        Raises:
            ConfigError: the object has no ``reset``, or ``ToolEnvironment`` raises it.
        """
        self._object = (import_python_target(factory) if isinstance(factory, str) else factory)()
        kind = type(self._object)
        names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
        if "reset" not in names:
            raise ConfigError(f"{kind.__name__} has no method reset, which begins a conversation: add one")
        methods = [getattr(self._object, name) for name in names if name not in ("reset", "get_reward", "close")]
        self._tools = ToolEnvironment([*functions, *methods], describe)

    def reset(self, prompt: Prompt) -> Turn:
        """The text and images of the object's ``reset``, then the signatures."""
        (observation,) = _awaited([self._object.reset(**prompt.columns)])
        if isinstance(observation, BaseException):
            raise observation
        images: list[Image.Image] = []
        texts = ("" if observation is None else _text_of(observation, images), self._tools.reset(prompt).text)
        return Turn(text="\n".join(filter(None, texts)), images=images)

    def step(self, text: str) -> Turn:
        """The results of the called tools; of a turn without calls, the end with the object's reward."""
        turn = self._tools.step(text)
        get_reward = getattr(self._object, "get_reward", None)
        if not turn.done or get_reward is None:
            return turn
        (reward,) = _awaited([get_reward()])
        if isinstance(reward, BaseException):
            raise reward
        return Turn(done=True, reward=float(reward))

    def close(self) -> None:
        """Calls the object's ``close``, if it has one."""
        if hasattr(self._object, "close"):
            self._object.close()


def _awaited(results: Sequence[Any]) -> list[Any]:
    """The results, with those of coroutines awaited side by side; an error in place of the result of one that fails."""
    if not any(map(inspect.isawaitable, results)):
        return list(results)

    async def gathered() -> list[Any]:
        awaitable = [result for result in results if inspect.isawaitable(result)]
        values = iter(await asyncio.gather(*awaitable, return_exceptions=True))
        return [next(values) if inspect.isawaitable(result) else result for result in results]

    return asyncio.run(gathered())


def calls_in(text: str) -> list[str]:
    """The text between each ``<tool_call>`` and the next ``</tool_call>``, in order, in linear time."""
    calls: list[str] = []
    for part in text.split(CLOSING)[:-1]:
        _, opening, call = part.partition(OPENING)
        if opening:
            calls.append(call.strip())
    return calls


def _text_of(result: Any, images: list[Image.Image]) -> str:
    """The text of a result; its images are appended to ``images``."""
    if isinstance(result, list | tuple) and result and all(map(_is_block, result)):
        texts = [_text_of(part["image"] if part["type"] == "image" else part["text"], images) for part in result]
        return "\n".join(filter(None, texts))
    plain = _without_images(result, images)
    if isinstance(result, Image.Image):
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, default=_plain)


def _is_block(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image", "text") and part["type"] in part


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


_schemas: dict[Callable[..., Any], str] = {}  # by function, which all objects of a class share


def schema_of(function: Callable[..., Any]) -> str:
    """A function's signature as JSON. Raises ConfigError if annotations or the docstring are incomplete."""
    from transformers.utils import get_json_schema

    key = getattr(function, "__func__", function)
    if key in _schemas:
        return _schemas[key]
    try:
        return _schemas.setdefault(key, json.dumps(get_json_schema(function)["function"]))
    except Exception as error:  # of transformers' own, without a common base
        raise ConfigError(
            f"the tool {function.__name__} cannot be described: {error}; annotate its arguments and its result, and "
            "give it a docstring with a line for each under Args:"
        ) from error
