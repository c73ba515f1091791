"""What is known of a group when one of its members is shown the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmgrpo.types import Prompt, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known of a group when one of its members is shown the prompt.

    Attributes:
        seed: keys the random numbers of what is shown: of the run, the step and the group.
        samples: in a view those of the group, the member's own among them; where it is drawn, those that it is drawn
            after, else those of the group of the rounds before.
        rewards: what the rewards of each come to; None where none applied.
        share: how much of an answer is to be shown, from 0 to 1; None: nobody says.
        ends: how many characters of its text there are after each decision of each; empty where nobody says.
    """

    seed: int = 0
    samples: Sequence[Sample] = ()
    rewards: Sequence[float | None] = ()
    ends: Sequence[Sequence[int]] = ()
    share: float | None = None


NOTHING = History()

Context = Callable[[Prompt, int, History], Prompt | None]
"""(prompt, member, history) -> what the member is shown; None: there is nothing for it to be shown."""
