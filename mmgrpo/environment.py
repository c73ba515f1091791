"""The contract of an environment: the other side of a multi-turn conversation, such as a game, a tool or another
model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from mmgrpo.samples import Turn as Turn
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Prompt


class Environment(ABC):
    """The environment of one conversation; each sample has its own instance.

    Attributes:
        gives_rewards: whether its turns may have a reward; if False, a method that needs such rewards raises an error
            before the run.
    """

    gives_rewards: ClassVar[bool] = True

    @abstractmethod
    def reset(self, prompt: Prompt) -> Turn:
        """Starts a conversation.

        Args:
            prompt: the prompt of the sample.

        Returns:
            The turn to append to the prompt before the policy writes; the empty turn appends nothing.
        """

    @abstractmethod
    def step(self, text: str) -> Turn:
        """Answers a turn of the policy.

        Args:
            text: the policy's last turn.

        Returns:
            The answer.
        """

    def close(self) -> None:  # noqa: B027
        """Releases what the conversation holds (processes, files, connections); called once, however it ends."""


class SupportsOptionalRewards(ABC):
    """An environment whose settings decide whether its turns may have a reward, in place of ``gives_rewards``."""

    @classmethod
    @abstractmethod
    def may_reward(cls, settings: Mapping[str, Any]) -> bool:
        """Whether its turns may have a reward.

        Args:
            settings: arguments of the environment.

        Returns:
            Whether they may.
        """


class SupportsCalls(ABC):
    """An environment that answers calls of tools; ``respond`` is called in place of ``step``."""

    @abstractmethod
    def respond(self, message: AssistantMessage) -> Turn:
        """Answers a turn of the policy.

        Args:
            message: the policy's last turn.

        Returns:
            The answer.
        """

    @abstractmethod
    def interrupted(self, error: TimeoutError) -> Turn | None:
        """The answer in place of one that took too long; called while ``respond`` still runs, on another thread.

        Args:
            error: the limit.

        Returns:
            The answer, after which the conversation continues on a new thread; None: the conversation ends, and its
            sample is not scored.
        """


class SupportsFinalReward(ABC):
    """An environment with a state that rewards read when the conversation is over, however it ended."""

    @abstractmethod
    def final_reward(self) -> float | None:
        """The reward of the last turn of a conversation that the environment did not end: a turn was cut off, or the
        number of turns was reached.

        Returns:
            The reward; None: no reward.
        """

    @property
    @abstractmethod
    def instance(self) -> Any:
        """The object that rewards in TRL's form receive in ``environments``."""
