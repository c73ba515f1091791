"""Calls of tools with one text argument, such as code or a query, in the formats that papers use."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import NoReplyError
from mmgrpo.tool_calls import AssistantMessage, ToolResult
from mmgrpo.tools import MAX_ERROR, ToolEnvironment
from mmgrpo.types import Prompt

TOOL_CALL = "tool_call"
"""The format of ``ToolEnvironment``, which describes a tool by its signature."""

MAX_CALLS = 8
"""Maximum number of calls of a turn that are answered; each may take as long as the environment allows a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """A format of calls: the argument between two texts, and the text of the answer.

    Attributes:
        opening: text before the argument.
        closing: text after it.
        result: text of the answer, with ``{result}``.
    """

    opening: str
    closing: str
    result: str

    @classmethod
    def of(cls, call: str | Mapping[str, str], formats: Mapping[str, CallFormat]) -> CallFormat | None:
        """The format that a setting names.

        Args:
            call: a name of ``formats``, ``tool_call``, or a mapping with the three texts.
            formats: named formats of the environment.

        Returns:
            The format; None for ``tool_call``.

        Raises:
            ConfigError: the name is unknown, or the mapping is incomplete.
        """
        if isinstance(call, str):
            if call not in (TOOL_CALL, *formats):
                raise ConfigError(f"call is one of {', '.join((*formats, TOOL_CALL))}, or a mapping; got {call!r}")
            return formats.get(call)
        texts = {name: call.get(name) for name in cls.__slots__}
        valid = all(isinstance(text, str) and text for text in texts.values()) and "{result}" in str(texts["result"])
        if not valid or set(call) != set(texts):
            raise ConfigError(
                "call needs the texts opening, closing, and result with {result} in it, such as {opening: '<code>', "
                f"closing: '</code>', result: '<output>{{result}}</output>'}}; got {dict(call)!r}"
            )
        return cls(**{name: str(text) for name, text in texts.items()})

    def arguments(self, text: str) -> Iterator[tuple[int, str]]:
        """The arguments of all complete calls, in linear time.

        Args:
            text: a turn of the policy.

        Yields:
            tuple[int, str]: the position of each argument, and the argument without whitespace at its ends.
        """
        start = text.find(self.opening)
        while start >= 0:
            start += len(self.opening)
            end = text.find(self.closing, start)
            if end < 0:
                return
            yield start, text[start:end].strip()
            start = text.find(self.opening, end + len(self.closing))

    @property
    def example(self) -> str:
        """A call with dots for the argument."""
        return f"{self.opening}...{self.closing}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTool:
    """A tool with one text argument.

    Attributes:
        name: its name.
        function: the tool, annotated and with a docstring, as ``ToolEnvironment`` needs.
        about: its purpose, for the description: "To run Python".
        format: format of its calls.
    """

    name: str
    function: Callable[[str], str]
    about: str
    format: CallFormat

    def result(self, argument: str) -> ToolResult:
        """The result of a call, as text in the tool's format; an error is text that the model reads.

        Args:
            argument: the argument.

        Returns:
            The result.

        Raises:
            NoReplyError: a server gave no usable reply.
            ConfigError: a setting is wrong.
        """
        started_s, failed = time.monotonic(), False
        try:
            text = self.function(argument)
        except (ConfigError, NoReplyError):
            raise
        except Exception as error:  # the model reads the error and may correct its call
            text, failed = f"{type(error).__name__}: {error}"[:MAX_ERROR], True
        text = self.format.result.replace("{result}", text)
        return ToolResult(self.name, text, failed=failed, seconds=time.monotonic() - started_s)


Tools = Sequence[TextTool] | ToolEnvironment
"""Tools of an environment: with calls in text formats, or in that of ``ToolEnvironment``."""


class SupportsTools(ABC):
    """An environment whose tools ``CombinedEnvironment`` can combine with others.

    Its setting ``describe`` is whether its opening turn describes them, which is false where they are combined.
    """

    @property
    @abstractmethod
    def tools(self) -> Tools:
        """The tools."""


@final
class TextCalls:
    """One side of a conversation: answers the calls of a turn; a turn without calls ends the conversation.

    With ``answer_tag`` a turn with ``<tag>..</tag>`` ends it, and the reply to a turn with neither an answer nor a call
    describes both.
    """

    def __init__(self, tools: Tools, *, answer_tag: str | None, describe: bool) -> None:
        """Selects the tools.

        Args:
            tools: the tools, or an environment for calls in its format.
            answer_tag: tag of the final answer; None: any turn without a call is final.
            describe: whether ``reset`` describes the calls and the answer.
        """
        self.tools = tools
        self._answer: CallFormat | None = None
        if answer_tag:
            self._answer = CallFormat(opening=f"<{answer_tag}>", closing=f"</{answer_tag}>", result="{result}")
        self._describe = describe

    def reset(self, prompt: Prompt) -> Turn:
        """The description of the calls, if it is appended to the prompt.

        Args:
            prompt: the prompt of the sample.

        Returns:
            The turn.
        """
        opening = self.tools.reset(prompt) if isinstance(self.tools, ToolEnvironment) else Turn()
        return replace(opening, text=self._description() if self._describe else "")

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the calls of a turn, one after another.

        Args:
            message: the policy's turn.

        Returns:
            The results; the end of the conversation for an answer, or for a turn without calls.
        """
        if self._answer and next(self._answer.arguments(message.text), None) is not None:
            return Turn(done=True)
        if isinstance(self.tools, ToolEnvironment):
            turn = self.tools.respond(message)
            return self._without_calls() if turn.done else turn
        calls = sorted(
            (position, number, argument)
            for number, tool in enumerate(self.tools)
            for position, argument in tool.format.arguments(message.text)
        )
        if not calls:
            return self._without_calls()
        results = [self.tools[number].result(argument) for _, number, argument in calls[:MAX_CALLS]]
        texts = [result.text for result in results]
        if len(calls) > MAX_CALLS:
            texts.append(f"[{len(calls) - MAX_CALLS} further calls are not answered: a turn may have {MAX_CALLS}]")
        return Turn(text="\n".join(texts), results=results)

    def _without_calls(self) -> Turn:
        return Turn(text=f"This turn is invalid. {self._description()}") if self._answer else Turn(done=True)

    def _description(self) -> str:
        """The calls, unless a ``ToolEnvironment`` describes them, and the final answer."""
        tools = () if isinstance(self.tools, ToolEnvironment) else self.tools
        parts = [f"{tool.about}, write {tool.format.example}" for tool in tools]
        parts += [f"To give the final answer, write {self._answer.example}"] if self._answer else []
        return "".join(f"{part}.\n" for part in parts).strip()


def tools_of(function: Callable[[str], str], about: str, call_format: CallFormat | None, *, describe: bool) -> Tools:
    """The tools of an environment with one function.

    Args:
        function: the function, annotated and with a docstring, as ``ToolEnvironment`` needs.
        about: its purpose, for the description: "To run Python".
        call_format: format of its calls; None: that of ``ToolEnvironment``.
        describe: whether ``ToolEnvironment`` describes it.

    Returns:
        The tools.
    """
    if call_format is None:
        return ToolEnvironment([function], describe)
    return [TextTool(name=function.__name__, function=function, about=about, format=call_format)]
