"""What a policy may write to over several turns: a game, a tool, another model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmgrpo.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What an environment says.

    Attributes:
        text: what the policy is told; the empty text, without pictures, ends the exchange.
        images: pictures that it is shown with that.
        reward: of what the policy wrote before; None where it has none.
        done: whether the exchange is over; what is told then is not told any more.
        role: whose turn it is, in the words of the model's chat template.
        key: names the state that the policy is in when it is told this, so that turns taken in one state can be
            compared, whatever led there; None: what it is told names it.
    """

    text: str = ""
    images: Sequence[Any] = ()
    reward: float | None = None
    done: bool = False
    role: str = "user"
    key: str | None = None

    @property
    def ends(self) -> bool:
        """Whether the policy does not write again."""
        return self.done or not (self.text or self.images)

    @property
    def state(self) -> str | None:
        """What names the state; None, not known, where pictures are shown and no key is given."""
        if self.key is not None or self.images:
            return self.key
        return self.text


class Environment(ABC):
    """The other side of one exchange; each sample has one of its own.

    Attributes:
        gives_rewards: whether its turns may have a reward; False lets a method that reads those raise before the run.
    """

    gives_rewards: ClassVar[bool] = True

    @abstractmethod
    def reset(self, prompt: Prompt) -> Turn:
        """Begins an exchange.

        Args:
            prompt: what the policy is asked.

        Returns:
            What is put behind the prompt before the policy first writes; the empty turn adds nothing to it.
        """

    @abstractmethod
    def step(self, text: str) -> Turn:
        """Answers what the policy wrote.

        Args:
            text: its last turn.

        Returns:
            What it is told.
        """
