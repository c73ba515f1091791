"""Tools that look at the media of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from types import MethodType
from typing import Any, Literal, final

from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.samples import MEDIA
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.tools import ToolEnvironment
from mmgrpo.types import Prompt

Available = Mapping[str, Callable[..., list[dict[str, Any]]]]
"""Tools by name: methods of the state of a conversation, which return content blocks."""


@final
class MediaTools:
    """One side of a conversation: answers calls of tools that look at the media of the prompt.

    A turn without calls ends the conversation.
    """

    def __init__(
        self,
        medium: Literal["image", "video", "audio"],
        available: Available,
        tools: Sequence[str] | Mapping[str, str],
        state_of: Callable[[Prompt], object],
        *,
        texts: Mapping[str, str],
        describe: bool,
        role: str,
    ) -> None:
        """Selects the tools.

        Args:
            medium: medium that a prompt needs.
            available: the tools that may be selected.
            tools: names of ``available``; as a mapping, the names by which the model calls them.
            state_of: makes the state of a conversation, whose methods are the tools.
            texts: replacements of ``{..}`` in their docstrings.
            describe: whether the prompt describes them, as in ``ToolEnvironment``.
            role: role of the answers in the chat template; ``user`` for templates without tools.

        Raises:
            ConfigError: an unknown tool, or none.
        """
        names = dict(tools) if isinstance(tools, Mapping) else {name: name for name in tools}
        if not names or not set(names) <= set(available):
            raise ConfigError(f"tools must be one or more of {', '.join(available)}, got {', '.join(names) or 'none'}")
        self._functions = [_renamed(available[tool], name, **texts) for tool, name in names.items()]
        self._medium, self._state_of, self._describe, self._role = medium, state_of, describe, role
        self._tools = self._tools_of(Prompt(""))  # checks the names

    def reset(self, prompt: Prompt) -> Turn:
        """The functions, if ``describe`` is set. Raises DataError for a prompt without the medium."""
        medium = self._medium
        if not len(getattr(prompt, MEDIA[medium])):
            raise DataError(
                f"the prompt {prompt.text!r:.60} has no {medium} for {medium}_tools: add a column '{medium}'"
            )
        self._tools = self._tools_of(prompt)
        return self._tools.reset(prompt)

    def respond(self, message: AssistantMessage) -> Turn:
        """The media of the called tools, in order, each with its text."""
        return replace(self._tools.respond(message), role=self._role)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        turn = self._tools.interrupted(error)
        return turn and replace(turn, role=self._role)

    def _tools_of(self, prompt: Prompt) -> ToolEnvironment:
        state = self._state_of(prompt)
        return ToolEnvironment([MethodType(function, state) for function in self._functions], self._describe)


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
