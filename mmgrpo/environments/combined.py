"""Several environments of tools as one, such as search and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from mmgrpo.config.registry import names, resolve
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.text_calls import SupportsTools, TextCalls, TextTool, Tools
from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.tools import ToolEnvironment
from mmgrpo.types import Prompt

COMBINED = ("answer_tag", "describe")
"""Settings that are those of the combination, not of a part."""


@final
class CombinedEnvironment(Environment, SupportsCalls):
    """Answers the calls of the tools of several environments, in their order in the turn.

    Parts are ``python``, ``search`` and ``sql``, and environments that implement ``SupportsTools``; the calls of all
    of them are in text formats, or all in that of ``ToolEnvironment`` (``call: tool_call``). Its turns have no rewards.

    Source: search and code in one conversation as in TAPO (arXiv:2510.07038).
    """

    gives_rewards = False

    def __init__(
        self, parts: Sequence[Mapping[str, Any]], answer_tag: str | None = None, describe: bool = True
    ) -> None:
        """Creates the parts.

        Args:
            parts: name and settings of each environment, such as ``[{name: search, corpus: FILE}, {name: python}]``.
            answer_tag: tag of the final answer; None: a turn without a call ends the conversation.
            describe: whether the description of the calls is appended to the prompt.

        Raises:
            ConfigError: a part has no tools to combine, or the parts' formats of calls differ or are equal.
        """
        self._parts: list[Environment] = []
        try:
            self._parts += (_part(dict(part)) for part in parts)
            self._calls = TextCalls(_joined(self._parts, describe), answer_tag=answer_tag, describe=describe)
        except BaseException:
            self.close()
            raise

    def reset(self, prompt: Prompt) -> Turn:
        """Begins the parts; the description of all calls."""
        for part in self._parts:
            part.reset(prompt)
        return self._calls.reset(prompt)

    def step(self, text: str) -> Turn:
        """The results of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the calls of a turn."""
        return self._calls.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the call that took too long still uses its part, so the conversation ends."""
        return None

    def close(self) -> None:
        """Closes the parts."""
        for part in self._parts:
            part.close()


def _part(settings: dict[str, Any]) -> Environment:
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"a part of combined needs the name of an environment, got {name!r}")
    if shared := [setting for setting in COMBINED if setting in settings]:
        raise ConfigError(f"{' and '.join(shared)} of the part {name}: set it for combined, not for a part")
    kind = resolve("environments", name)
    if not (isinstance(kind, type) and issubclass(kind, SupportsTools)):
        usable = [n for n in names("environments") if _supports_tools(n)]
        raise ConfigError(f"combined cannot combine the environment {name}: parts are {', '.join(usable)}")
    return kind(answer_tag=None, describe=False, **settings)


def _supports_tools(name: str) -> bool:
    kind = resolve("environments", name)
    return isinstance(kind, type) and issubclass(kind, SupportsTools)


def _joined(parts: Sequence[Environment], describe: bool) -> Tools:
    if len(parts) < 2:
        raise ConfigError(f"combined needs two or more parts, got {len(parts)}: name a single environment directly")
    tools = [part.tools for part in parts if isinstance(part, SupportsTools)]
    with_schemas = [each for each in tools if isinstance(each, ToolEnvironment)]
    with_formats = [tool for each in tools if not isinstance(each, ToolEnvironment) for tool in each]
    if with_schemas and with_formats:
        raise ConfigError(
            "the parts of combined have calls of two kinds: set call: tool_call for all parts, or for none"
        )
    if with_schemas:
        return ToolEnvironment([tool for each in with_schemas for tool in each.tools], describe)
    _require_distinct(with_formats)
    return with_formats


def _require_distinct(tools: Sequence[TextTool]) -> None:
    openings = [tool.format.opening for tool in tools]
    if equal := sorted({opening for opening in openings if openings.count(opening) > 1}):
        raise ConfigError(f"two parts of combined have calls that begin with {equal[0]!r}: set call of one of them")
