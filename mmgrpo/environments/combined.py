"""Several environments of tools as one, such as search and Python, or tools and a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from mmgrpo.config.registry import resolve
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.text_calls import SupportsTools, TextCalls, TextTool, Tools
from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.tools import ToolEnvironment, ToolObjectEnvironment
from mmgrpo.types import Prompt

COMBINED = ("answer_tag", "describe")
"""Settings that are those of the combination, not of a part."""


@final
class CombinedEnvironment(Environment, SupportsCalls):
    """Answers the calls of the tools of several environments, in their order in the turn.

    Parts are ``python``, ``search``, ``sql``, ``tools``, ``tool_object`` and environments that implement
    ``SupportsTools``; the calls of all of them are in text formats, or all in that of ``ToolEnvironment``
    (``call: tool_call``). A turn without calls ends the conversation, or goes to the ``partner``, an environment such
    as ``simulated``, whose reply is the next turn and has its reward. Rewards of parts are not used.

    Source: search and code in one conversation as in TAPO (arXiv:2510.07038); tools and a simulated user as in CoVe
    (arXiv:2603.01940).
    """

    def __init__(
        self,
        parts: Sequence[Mapping[str, Any]],
        answer_tag: str | None = None,
        describe: bool = True,
        partner: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates the parts.

        Args:
            parts: name and settings of each environment, such as ``[{name: search, corpus: FILE}, {name: python}]``.
            answer_tag: tag of the final answer; None: a turn without a call ends the conversation.
            describe: whether the description of the calls is appended to the prompt.
            partner: name and settings of the environment that turns without calls go to.

        Raises:
            ConfigError: a part has no tools to combine, the parts' formats of calls differ or are equal, or there is
                both a partner and a tag of the answer.
        """
        if partner is not None and answer_tag is not None:
            raise ConfigError("combined has a partner, who ends the conversation: leave out answer_tag")
        self._parts: list[Environment] = []
        self._partner: Environment | None = None
        try:
            self._parts += (_part(dict(part)) for part in parts)
            self._partner = None if partner is None else _environment(dict(partner))
            if len(self._parts) < 2 - (self._partner is not None):
                raise ConfigError(f"combined needs two or more parts, got {len(parts)}: name a single one directly")
            self._calls = TextCalls(_joined(self._parts, describe), answer_tag=answer_tag, describe=describe)
        except BaseException:
            self.close()
            raise

    def reset(self, prompt: Prompt) -> Turn:
        """Begins the parts; the description of all calls, then the opening turn of the partner."""
        for part in self._parts:
            part.reset(prompt)
        opening = self._calls.reset(prompt)
        if self._partner is None:
            return opening
        turn = self._partner.reset(prompt)
        return replace(turn, text="\n".join(filter(None, (opening.text, turn.text))), tools=opening.tools)

    def step(self, text: str) -> Turn:
        """The results of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the calls of a turn; of a turn without calls, the partner's reply."""
        turn = self._calls.respond(message)
        return self._partner.step(message.text) if self._partner is not None and turn.done else turn

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the call that took too long still uses its part, so the conversation ends."""
        return None

    def close(self) -> None:
        """Closes the parts and the partner."""
        for part in (*self._parts, *filter(None, [self._partner])):
            part.close()


def _environment(settings: dict[str, Any]) -> Environment:
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"a part of combined needs the name of an environment, got {name!r}")
    return resolve("environments", name)(**settings)


def _part(settings: dict[str, Any]) -> Environment:
    if shared := [setting for setting in COMBINED if setting in settings]:
        raise ConfigError(f"{' and '.join(shared)} of a part: set it for combined, not for a part")
    part = _environment(dict(settings))
    if isinstance(part, SupportsTools | ToolEnvironment | ToolObjectEnvironment):
        return part
    part.close()
    raise ConfigError(
        f"combined cannot combine the environment {settings['name']}: parts are python, search, sql, tools, "
        "tool_object, and environments that implement SupportsTools"
    )


def _tools_of(part: Environment) -> Tools:
    if isinstance(part, ToolEnvironment):
        return part
    assert isinstance(part, SupportsTools | ToolObjectEnvironment)
    return part.tools


def _joined(parts: Sequence[Environment], describe: bool) -> Tools:
    tools = [_tools_of(part) for part in parts]
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
