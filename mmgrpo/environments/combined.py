"""Several environments of tools as one, such as search and Python, or tools and a user."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from mmgrpo.config.registry import may_reward_turns, resolve
from mmgrpo.environment import Environment, SupportsCalls, SupportsFinalReward, SupportsOptionalRewards, Turn
from mmgrpo.environments.text_calls import SupportsTools, TextCalls, TextTool, Tools
from mmgrpo.errors import ConfigError
from mmgrpo.samples import joined_media
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.tools import ToolEnvironment, ToolObjectEnvironment
from mmgrpo.types import Prompt

PARTS = (SupportsTools, ToolEnvironment, ToolObjectEnvironment)

TOOL_SETTINGS = tuple(inspect.signature(ToolEnvironment).parameters)[1:]
"""Settings of ``ToolEnvironment`` that are those of the combination, not of a part."""


@final
class CombinedEnvironment(Environment, SupportsCalls, SupportsFinalReward, SupportsOptionalRewards):
    """Answers the calls of the tools of several environments, in their order in the turn.

    Parts are ``python``, ``search``, ``sql``, ``tools``, ``tool_object`` and classes that implement ``SupportsTools``;
    the calls of all of them are in text formats, or all in that of ``ToolEnvironment`` (``call: tool_call``). The
    opening turn has their texts and media. A turn without calls ends the conversation, or goes to the ``partner``, an
    environment such as ``simulated``, whose reply is the next turn and has its reward. Without rewards of a partner,
    the ``get_reward`` of a ``tool_object``, if it has one, is the reward of the last turn.

    Source: search and code in one conversation as in TAPO (arXiv:2510.07038); tools and a simulated user as in CoVe
    (arXiv:2603.01940).
    """

    def __init__(
        self,
        parts: Sequence[Mapping[str, Any]],
        answer_tag: str | None = None,
        describe: bool = True,
        partner: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """Creates the parts.

        Args:
            parts: name and settings of each environment, such as ``[{name: search, corpus: FILE}, {name: python}]``.
            answer_tag: tag of the final answer; None: a turn without a call ends the conversation.
            describe: whether the description of the calls is appended to the prompt.
            partner: name and settings of the environment that turns without calls go to.
            **settings: with calls in the format of ``ToolEnvironment``, its other settings.

        Raises:
            ConfigError: a part has no tools to combine, or a setting that is one of the combination; the parts' formats
                of calls differ or are equal; there is both a partner and a tag of the answer; two of the parts and the
                partner have rewards.
        """
        if partner is not None and answer_tag is not None:
            raise ConfigError("combined has a partner, who ends the conversation: leave out answer_tag")
        self._parts: list[Environment] = []
        self._partner: Environment | None = None
        try:
            self._parts += (_part(*_named(part)) for part in parts)
            if partner is not None:
                self._partner = _environment(*_named(partner))
            if len(self._parts) < 2 - (self._partner is not None):
                raise ConfigError(f"combined needs two or more parts, got {len(parts)}: name a single one directly")
            self._rewarding = _rewarding(self._parts, is_partner_rewarded=_may_reward(partner))
            tools = _joined(self._parts, {"describe": describe, **settings})
            self._calls = TextCalls(tools, answer_tag=answer_tag, describe=describe)
        except BaseException:
            self.close()
            raise

    @classmethod
    def may_reward(cls, settings: Mapping[str, Any]) -> bool:
        """Whether there is a partner whose turns may have a reward, or a ``tool_object``."""
        kinds = [resolve("environments", _named(part)[0]) for part in settings.get("parts", ())]
        has_object = any(isinstance(kind, type) and issubclass(kind, ToolObjectEnvironment) for kind in kinds)
        return has_object or _may_reward(settings.get("partner"))

    @property
    def instance(self) -> Environment:
        """This environment."""
        return self

    def reset(self, prompt: Prompt) -> Turn:
        """The opening turns of the parts, the description of all calls, then the opening turn of the partner.

        Raises: ConfigError if the partner has tools.
        """
        others = {name: value for name, value in prompt.chat_template_kwargs.items() if name != "tools"}
        of_part = replace(prompt, chat_template_kwargs=others)  # a row selects among the tools of all parts
        calls = self._calls.reset(prompt)
        last = Turn() if self._partner is None else self._partner.reset(of_part)
        turns = [*(part.reset(of_part) for part in self._parts), calls, last]
        if last.tools:
            raise ConfigError("the partner of combined has tools: add it to parts, or choose a partner without tools")
        text = "\n".join(turn.text for turn in turns if turn.text)
        return replace(last, text=text, tools=calls.tools, **joined_media(turns))

    def step(self, text: str) -> Turn:
        """The results of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the calls of a turn; of a turn without calls, the partner's reply."""
        turn = self._calls.respond(message)
        if self._partner is not None and turn.done:
            turn = self._partner.step(message.text)
        return replace(turn, reward=self._rewarding.final_reward()) if self._rewarding and turn.ends else turn

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the call that took too long still uses its part, so the conversation ends."""
        return None

    def final_reward(self) -> float | None:
        """That of the object with a reward, or the partner's, if it rewards conversations that it did not end."""
        if self._rewarding is not None:
            return self._rewarding.final_reward()
        return self._partner.final_reward() if isinstance(self._partner, SupportsFinalReward) else None

    def close(self) -> None:
        """Closes the parts and the partner."""
        for part in (*self._parts, *filter(None, [self._partner])):
            part.close()


def _named(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of an environment and its settings."""
    others = dict(settings)
    name = others.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"a part of combined needs the name of an environment, got {name!r}")
    return name, others


def _may_reward(partner: Mapping[str, Any] | None) -> bool:
    return partner is not None and may_reward_turns(*_named(partner))


def _rewarding(parts: Sequence[Environment], *, is_partner_rewarded: bool) -> ToolObjectEnvironment | None:
    """The part whose object has a reward. Raises ConfigError if there are several rewards."""
    rewarding = [part for part in parts if isinstance(part, ToolObjectEnvironment) and part.has_reward]
    if len(rewarding) + is_partner_rewarded > 1:
        names = [f"{type(part.instance).__name__}.get_reward" for part in rewarding]
        names += ["the partner"] * is_partner_rewarded
        raise ConfigError(
            f"combined has several rewards of a conversation, {', '.join(names)}: leave all but one without a reward"
        )
    return rewarding[0] if rewarding else None


def _environment(name: str, settings: Mapping[str, Any]) -> Environment:
    return resolve("environments", name)(**settings)


def _part(name: str, settings: Mapping[str, Any]) -> Environment:
    kind = resolve("environments", name)
    if not (isinstance(kind, type) and issubclass(kind, PARTS)):
        raise ConfigError(
            f"combined cannot combine the environment {name}: parts are python, search, sql, tools, tool_object, and "
            "classes that implement SupportsTools"
        )
    of_combined = ("answer_tag", "describe") if issubclass(kind, SupportsTools) else ("answer_tag", *TOOL_SETTINGS)
    if shared := [setting for setting in of_combined if setting in settings]:
        raise ConfigError(f"{' and '.join(shared)} of a part: set it for combined, not for a part")
    return _environment(name, {**settings, "describe": False})


def _tools_of(part: Environment) -> Tools:
    if isinstance(part, ToolEnvironment):
        return part
    assert isinstance(part, SupportsTools | ToolObjectEnvironment)
    return part.tools


def _joined(parts: Sequence[Environment], settings: Mapping[str, Any]) -> Tools:
    """The tools of the parts; settings are those of ``ToolEnvironment``."""
    tools = [_tools_of(part) for part in parts]
    with_schemas = [each for each in tools if isinstance(each, ToolEnvironment)]
    with_formats = [tool for each in tools if not isinstance(each, ToolEnvironment) for tool in each]
    if with_schemas and with_formats:
        raise ConfigError(
            "the parts of combined have calls of two kinds: set call: tool_call for all parts, or for none"
        )
    if with_schemas:
        return ToolEnvironment([tool for each in with_schemas for tool in each.tools], **settings)
    if unused := sorted(settings.keys() - {"describe"}):
        raise ConfigError(f"combined has no setting {', '.join(unused)} for calls in text formats: leave it out")
    _require_distinct(with_formats)
    return with_formats


def _require_distinct(tools: Sequence[TextTool]) -> None:
    openings = [tool.format.opening for tool in tools]
    if equal := sorted({opening for opening in openings if openings.count(opening) > 1}):
        raise ConfigError(f"two parts of combined have calls that begin with {equal[0]!r}: set call of one of them")
