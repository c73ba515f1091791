"""The contract of an environment: the other side of a multi-turn conversation, such as a game, a tool or another
model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmgrpo.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An observation: a turn of the environment.

    Attributes:
        text: text of the turn; an empty text without images ends the conversation.
        images: images of the turn.
        reward: reward of the policy's last turn; None: no reward.
        done: whether the conversation ends; the policy then does not see this turn.
        role: role of the turn in the model's chat template.
        key: identifies the state that the turn leads to, so that turns taken in one state can be compared; None: the
            text identifies it.
    """

    text: str = ""
    images: Sequence[Any] = ()
    reward: float | None = None
    done: bool = False
    role: str = "user"
    key: str | None = None

    @property
    def ends(self) -> bool:
        """Whether the conversation ends with this turn."""
        return self.done or not (self.text or self.images)

    @property
    def state(self) -> str | None:
        """Identifier of the state; None (unknown) for a turn with images and without a key."""
        if self.key is not None or self.images:
            return self.key
        return self.text


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
