"""Tools: plain Python functions with docstrings that a language model may call between its turns."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

from mmgrpo.data.image_loading import LazyImages
from mmgrpo.environment import Environment, SupportsCalls, SupportsFinalReward, Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.samples import MEDIA, joined_media
from mmgrpo.system.json_requests import NoReplyError
from mmgrpo.system.targets import import_python_target
from mmgrpo.tool_calls import (
    AssistantMessage,
    FunctionCall,
    ToolResult,
    calls_of,
    checked_arguments,
    fenced_calls,
)
from mmgrpo.tool_results import ResultLimits, read_result
from mmgrpo.types import Prompt

MAX_CALLS = 16
"""Maximum number of calls of a turn that are executed."""

MAX_ERROR = 500
"""Maximum number of characters of an error."""

RETRY_PAUSE_S = 0.1
"""Pause before the first repetition of a call, in seconds; doubled before each further one."""


@final
@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a policy may call.

    Attributes:
        name: its name.
        schema: its JSON schema: ``name``, ``description`` and ``parameters``.
        function: receives the arguments by name; may be a coroutine function.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]

    @classmethod
    def of(cls, function: Tool | Callable[..., Any] | str) -> Tool:
        """A tool of a Python function with annotated arguments and a docstring, or of ``python:module:function``.

        Args:
            function: the function; a tool is returned as it is.

        Returns:
            The tool.

        Raises:
            ConfigError: its annotations or its docstring are incomplete.
        """
        if isinstance(function, Tool):
            return function
        resolved = import_python_target(function) if isinstance(function, str) else function
        if isinstance(resolved, Tool):
            return resolved
        return cls(resolved.__name__, schema_of(resolved), resolved)


@dataclass(slots=True)
class _Execution:
    """The calls of a turn while they run, each with its result as soon as it has one."""

    calls: Sequence[FunctionCall]
    results: list[tuple[ToolResult, Turn] | None] = field(init=False)
    started_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.results = [None] * len(self.calls)

    def turn(self) -> Turn:
        """The results, in order."""
        finished = [result for result in self.results if result is not None]
        text = "\n".join(filter(None, (turn.text for _, turn in finished)))
        media: dict[str, Any] = joined_media([turn for _, turn in finished])
        return Turn(text=text, results=[result for result, _ in finished], role="tool", **media)


@final
class ToolEnvironment(Environment, SupportsCalls):
    """Calls the functions that a turn requests and answers with their results; a turn without calls ends the
    conversation.

    Calls are those that the response template of the tokenizer reads (``parse_response`` of transformers); if it reads
    none, those of ``mmgrpo.tool_calls.calls_in``, and else the code blocks of a language in ``fences``.
    The answer to an invalid call, and to a function that raises, is ``{"error": ..}``. Functions have the form of
    transformers and TRL: annotated arguments, a docstring with ``Args:``; they may be coroutine functions, and the
    coroutines of a turn run side by side. They return text, JSON values and media in the forms of
    ``mmgrpo.tool_results.read_result``; the media are those of the turn. Its turns have no rewards.
    """

    gives_rewards = False

    def __init__(
        self,
        functions: Sequence[Tool | Callable[..., Any] | str],
        describe: bool = True,
        fences: Mapping[str, str] | None = None,
        retries: int = 0,
        max_characters: int = 16_384,
        max_pixels: int = 2**22,
        max_frames: int = 64,
        max_seconds: float = 60.0,
    ) -> None:
        """Resolves the functions.

        Args:
            functions: the functions, or ``python:module:function`` of each.
            describe: whether the prompt describes them: by the chat template, or by a text if the template has no
                tools.
            fences: function of each language of code blocks, such as ``{python: run}``; it receives the code.
            retries: how often a call is repeated that raises an error of a connection or file (``OSError``, a
                transport error of httpx).
            max_characters: as in ``mmgrpo.tool_results.ResultLimits``.
            max_pixels: likewise.
            max_frames: likewise.
            max_seconds: likewise.

        Raises:
            ConfigError: there is no function, two have one name, a signature cannot be described, or a limit is not
                positive.
        """
        tools = [Tool.of(function) for function in functions]
        self._tools = {tool.name: tool for tool in tools}
        if not tools or len(self._tools) != len(tools):
            names = [tool.name for tool in tools]
            raise ConfigError(f"tools must be one or more functions with distinct names, got {names}")
        if unknown := sorted({*(fences or {}).values()} - self._tools.keys()):
            raise ConfigError(f"fences names no tool: {', '.join(unknown)}; tools are {', '.join(self._tools)}")
        if retries < 0:
            raise ConfigError(f"retries must be 0 or more, got {retries}")
        self._describe, self._fences, self._retries = describe, dict(fences or {}), retries
        self._limits = ResultLimits(
            max_characters=max_characters, max_pixels=max_pixels, max_frames=max_frames, max_seconds=max_seconds
        )
        self._schemas = {name: tool.schema for name, tool in self._tools.items()}
        self._callable = self._schemas
        self._execution = _Execution([])

    @property
    def names(self) -> list[str]:
        """Names of the functions."""
        return list(self._tools)

    @property
    def tools(self) -> list[Tool]:
        """The functions."""
        return list(self._tools.values())

    def reset(self, prompt: Prompt) -> Turn:
        """The functions, if ``describe`` is set; a row with a column ``tools`` selects those that it may call.

        Raises: DataError if it selects one that does not exist, which costs this row.
        """
        self._callable = self._schemas
        if (selected := prompt.chat_template_kwargs.get("tools")) is not None:
            names = [tool.get("function", tool).get("name") for tool in selected]
            if unknown := [str(name) for name in names if name not in self._tools]:
                raise DataError(
                    f"the column tools of {prompt.text!r:.60} has {', '.join(unknown)}, and the tools of the run are "
                    f"{', '.join(self._tools)}: add the function to rollout.environment, or remove it from the row"
                )
            self._callable = {name: self._schemas[name] for name in names}
        tools = [{"type": "function", "function": dict(schema)} for schema in self._callable.values()]
        return Turn(tools=tools if self._describe else ())

    def step(self, text: str) -> Turn:
        """The results of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the called functions, in order, and their media."""
        self._execution = _Execution([])
        calls = calls_of(message, self._callable) or fenced_calls(
            message.text, self._fences, self._callable, begins_in_reasoning=message.begins_in_reasoning
        )
        if not calls:
            return Turn(done=True)
        excess = f"a turn may have {MAX_CALLS} calls, this one has {len(calls)}: the others are not executed"
        calls = [*calls[:MAX_CALLS], *([FunctionCall(error=excess)] if len(calls) > MAX_CALLS else [])]
        self._execution = execution = _Execution(calls)
        waiting = []
        for number, call in enumerate(calls):
            execution.started_s = started_s = time.monotonic()
            outcome = self._outcome(call)
            if inspect.isawaitable(outcome):
                waiting.append(self._await(execution, number, outcome, started_s))
            else:
                self._finish(execution, number, outcome, started_s)
        if waiting:
            asyncio.run(_gather(waiting))
        return execution.turn()

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """The results of the calls that are finished, and the error in place of the others; None without calls."""
        execution, self._execution = self._execution, _Execution([])
        if not execution.calls:
            return None  # something else took too long
        seconds = time.monotonic() - execution.started_s
        partial = _Execution(execution.calls)
        partial.results = [
            result or self._failure(call, error, seconds)
            for call, result in zip(execution.calls, execution.results, strict=True)
        ]
        return partial.turn()

    def read(self, value: Any) -> Turn:
        """The text and the media of a value that a function may return, within the limits of results."""
        return read_result(value, self._limits)

    def _outcome(self, call: FunctionCall) -> Any:
        """The result of a call, or its coroutine, or its error."""
        for attempt in itertools.count():
            try:
                return self._prepared(call)()
            except NoReplyError:  # of a server, not of the call
                raise
            except BaseException as error:  # also SystemExit of a tool: the model reads it
                if attempt == self._retries or not _is_transient(error):
                    return error
            time.sleep(RETRY_PAUSE_S * 2**attempt)

    def _prepared(self, call: FunctionCall) -> Callable[[], Any]:
        """The function of a call with its arguments."""
        if call.error is not None:
            raise ValueError(call.error)
        if call.name not in self._callable:
            raise KeyError(f"there is no function {call.name!r}; known are {', '.join(self._callable)}")
        try:
            arguments = checked_arguments(self._callable[call.name], call.arguments)
        except TypeError as error:
            raise TypeError(f"{call.name}: {error}") from None
        return partial(self._tools[call.name].function, **arguments)

    async def _await(self, execution: _Execution, number: int, outcome: Awaitable[Any], started_s: float) -> None:
        call = execution.calls[number]
        value: Any = None
        for attempt in itertools.count():
            try:
                value = await outcome
                break
            except BaseException as error:
                if attempt == self._retries or not _is_transient(error):
                    value = error
                    break
            await asyncio.sleep(RETRY_PAUSE_S * 2**attempt)
            outcome = self._prepared(call)()
        self._finish(execution, number, value, started_s)

    def _finish(self, execution: _Execution, number: int, outcome: Any, started_s: float) -> None:
        """Stores the result of a call, within the limits."""
        call, seconds = execution.calls[number], time.monotonic() - started_s
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            turn = read_result(outcome, self._limits)
            counts: dict[str, Any] = {f"num_{name}": len(getattr(turn, name)) for name in MEDIA.values()}
            result = ToolResult(call.name, turn.text, seconds=seconds, arguments=call.arguments, **counts)
            execution.results[number] = result, turn
        except BaseException as error:  # the model reads the error and may correct its call
            execution.results[number] = self._failure(call, error, seconds)

    def _failure(self, call: FunctionCall, error: BaseException, seconds: float) -> tuple[ToolResult, Turn]:
        """The result of a call that failed; a function that does not exist has no name in it."""
        try:
            reason = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        except Exception:  # of an error that cannot be written
            reason = "its text cannot be made"
        text = json.dumps({"error": f"{type(error).__name__}: {reason}"[:MAX_ERROR]}, ensure_ascii=False)
        name = call.name if call.name in self._callable else ""
        return ToolResult(name, text, failed=True, seconds=seconds, arguments=call.arguments), Turn(text=text)


@final
class ToolObjectEnvironment(Environment, SupportsCalls, SupportsFinalReward):
    """The public methods of an object that each conversation creates, as tools: TRL's ``environment_factory``.

    ``reset`` of the object receives the columns of the row, its images as ``image`` and ``images``, and returns None,
    or a text or content blocks to append to the prompt. ``get_reward``, if it exists, is the reward of the last turn,
    also of a conversation that was cut off; ``close``, if it exists, is called after it. The other public methods are
    the tools, in the form of ``ToolEnvironment``.
    """

    def __init__(
        self,
        factory: Callable[[], Any] | str | Mapping[str, Callable[[], Any] | str],
        functions: Sequence[Tool | Callable[..., Any] | str] = (),
        describe: bool = True,
        **settings: Any,
    ) -> None:
        """Creates the object.

        Args:
            factory: returns the object, or ``python:module:Class``; a mapping has one for each value of the column
                ``environment``.
            functions: further tools, as those of ``ToolEnvironment``.
            describe: likewise.
            **settings: its other settings.

        Raises:
            ConfigError: the object has no ``reset``, or ``ToolEnvironment`` raises it.
        """
        self._factories = factory if isinstance(factory, Mapping) else None
        self._functions = functions
        self._settings: dict[str, Any] = {"describe": describe, **settings}
        self._object: Any = None
        if not isinstance(factory, Mapping):
            self._create(factory)

    def _create(self, factory: Callable[[], Any] | str) -> None:
        self._object = (import_python_target(factory) if isinstance(factory, str) else factory)()
        kind = type(self._object)
        names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
        if "reset" not in names:
            raise ConfigError(f"{kind.__name__} has no method reset, which begins a conversation: add one")
        methods = [getattr(self._object, name) for name in names if name not in ("reset", "get_reward", "close")]
        self._tools = ToolEnvironment([*self._functions, *methods], **self._settings)

    @property
    def instance(self) -> Any:
        """The object."""
        return self._object

    @property
    def tools(self) -> ToolEnvironment:
        """The tools. Raises ConfigError for a factory of each value of a column, which makes them at ``reset``."""
        if self._factories is not None:
            raise ConfigError(
                "the tools of a mapping of factories are those of a row: name one factory to combine them"
            )
        return self._tools

    def reset(self, prompt: Prompt) -> Turn:
        """The text and images of the object's ``reset``, and the functions."""
        columns = {"prompt": prompt.messages or prompt.text, **_media_columns(prompt), **prompt.columns}
        if self._factories is not None:
            name = columns.pop("environment", None)
            if name not in self._factories:
                raise DataError(f"the column environment is {name!r}; it must be one of {', '.join(self._factories)}")
            self._create(self._factories[name])
        observation = _awaited(self._object.reset(**_accepted(self._object.reset, columns)))
        opening = Turn() if observation is None else self._tools.read(observation)
        return replace(opening, tools=self._tools.reset(prompt).tools)

    def step(self, text: str) -> Turn:
        """The results of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the called tools; of a turn without calls, the end with the object's reward."""
        turn = self._tools.respond(message)
        return Turn(done=True, reward=self.final_reward()) if turn.done else turn

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        return self._tools.interrupted(error)

    @property
    def has_reward(self) -> bool:
        """Whether the object has ``get_reward``."""
        return getattr(self._object, "get_reward", None) is not None

    def final_reward(self) -> float | None:
        """The reward of the object's ``get_reward``; None without one."""
        reward = _awaited(self._object.get_reward()) if self.has_reward else None
        return None if reward is None else float(reward)

    def close(self) -> None:
        """Calls the object's ``close``, if it has one."""
        if getattr(self._object, "close", None) is not None:
            _awaited(self._object.close())


def _media_columns(prompt: Prompt) -> dict[str, Any]:
    """The media of a row under the names of their columns; ``image`` is the first of ``images``."""
    images = LazyImages(prompt.images)
    columns = {"images": images, "videos": prompt.videos, "audios": prompt.audios}
    return {name: media for name, media in columns.items() if len(media)} | ({"image": images[0]} if images else {})


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a function names, or all if it takes any."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in arguments.items() if takes_any or name in parameters}


async def _gather(coroutines: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*coroutines)


def _awaited(value: Any) -> Any:
    """A value, or the result of a coroutine."""

    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def _is_transient(error: BaseException) -> bool:
    """Whether an error is one of a connection or a file, which may pass."""
    httpx = sys.modules.get("httpx")
    return isinstance(error, OSError) or (httpx is not None and isinstance(error, httpx.TransportError))


_schemas: dict[Callable[..., Any], Mapping[str, Any]] = {}  # by function, which all objects of a class share


def schema_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A function's JSON schema. Raises ConfigError if annotations or the docstring are incomplete."""
    from transformers.utils import get_json_schema

    key = getattr(function, "__func__", function)
    if key in _schemas:
        return _schemas[key]
    try:
        return _schemas.setdefault(key, get_json_schema(function)["function"])
    except Exception as error:  # of transformers' own, without a common base
        raise ConfigError(
            f"the tool {function.__name__} cannot be described: {error}; annotate its arguments and its result, and "
            "give it a docstring with a line for each under Args:"
        ) from error
