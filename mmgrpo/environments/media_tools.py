"""Environments whose tools look at the media of a prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from types import MethodType
from typing import Any, ClassVar, Literal

from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.tools import ToolEnvironment, ToolEnvironmentWrapper
from mmgrpo.types import Prompt

MediaTools = Mapping[str, Callable[..., list[dict[str, Any]]]]
"""Methods of the state of a conversation, by name, that return content blocks."""


class MediaToolsEnvironment(ToolEnvironmentWrapper):
    """Answers calls of tools with media; a turn without calls ends the conversation.

    Attributes:
        medium: medium of the prompt that the tools need.
        available: the tools that may be selected.
    """

    medium: ClassVar[Literal["image", "video"]]
    available: ClassVar[MediaTools]

    def __init__(self, tools: Sequence[str] | Mapping[str, str], describe: bool, role: str) -> None:
        """Selects the tools.

        Args:
            tools: names of ``available``; as a mapping, the names by which the model calls them.
            describe: whether the prompt describes them, as in ``ToolEnvironment``.
            role: role of the answers in the chat template; ``user`` for templates without tools.

        Raises:
            ConfigError: an unknown tool, or none.
        """
        names = dict(tools) if isinstance(tools, Mapping) else {name: name for name in tools}
        if not names or not set(names) <= set(self.available):
            options = ", ".join(self.available)
            raise ConfigError(f"tools must be one or more of {options}, got {', '.join(names) or 'none'}")
        self._names, self._describe, self._role = names, describe, role
        self._tools = self._environment(Prompt(""))  # checks the names

    @abstractmethod
    def _state(self, prompt: Prompt) -> object:
        """The state of a conversation, whose methods are the tools."""

    @abstractmethod
    def _texts(self) -> Mapping[str, str]:
        """Replacements of ``{..}`` in the docstrings of the tools."""

    def reset(self, prompt: Prompt) -> Turn:
        """The functions, if ``describe`` is set. Raises DataError for a prompt without the medium."""
        if not len(prompt.images if self.medium == "image" else prompt.videos):
            medium = self.medium
            raise DataError(
                f"the prompt {prompt.text!r:.60} has no {medium} for {medium}_tools: add a column '{medium}'"
            )
        self._tools = self._environment(prompt)
        return super().reset(prompt)

    def respond(self, message: AssistantMessage) -> Turn:
        """The media of the called tools, in order, each with its text."""
        return replace(super().respond(message), role=self._role)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        turn = super().interrupted(error)
        return turn and replace(turn, role=self._role)

    def _environment(self, prompt: Prompt) -> ToolEnvironment:
        state, texts = self._state(prompt), self._texts()
        methods = [
            MethodType(_renamed(self.available[tool], name, **texts), state) for tool, name in self._names.items()
        ]
        return ToolEnvironment(methods, self._describe)


@cache
def _renamed(function: Callable[..., Any], name: str, **texts: str) -> Callable[..., Any]:
    """A function under the name that the model calls, with texts in its docstring; one object for equal arguments."""

    @wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    renamed.__name__ = renamed.__qualname__ = name
    for field, text in texts.items():
        renamed.__doc__ = (renamed.__doc__ or "").replace(f"{{{field}}}", text)
    return renamed
