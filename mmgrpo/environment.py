"""The contract of an environment: the other side of a multi-turn conversation, such as a game, a tool or another
model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from mmgrpo.samples import Turn as Turn
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
