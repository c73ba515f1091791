"""The state of a group that prompt templates read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate

from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.types import Prompt, Sample


@dataclass(frozen=True, slots=True)
class RoleTurn:
    """A sample as a turn of a conversation between roles.

    Attributes:
        role: name of the prompt template that it was sampled under; without one, of the task; without tasks, "".
        sample: the sample, whose text is the turn.
    """

    role: str
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The state of a group when a prompt template builds the prompt of one of its members.

    Attributes:
        seed: seed of the prompt template's random numbers; depends on the run, the step and the group.
        samples: in a view, all samples of the group, including the member's; when the member is sampled, the samples
            that it is conditioned on, else those of the group from earlier rounds.
        rewards: total reward of each sample; None if no reward applied.
        role: role of the member, as in ``RoleTurn``.
        turns: the conversation that leads to ``samples``, if the member is conditioned on them: the samples that their
            prompts contain, and so on back to the first one, then ``samples``; of an earlier task, those that are
            trained on.
        share: share of the solution that the prompt includes, from 0 to 1; None: not set.
        ends: per sample, the number of characters of its text after each decision; empty if not available.
    """

    seed: int = 0
    samples: Sequence[Sample] = ()
    rewards: Sequence[float | None] = ()
    role: str = ""
    turns: Sequence[RoleTurn] = ()
    ends: Sequence[Sequence[int]] = ()
    share: float | None = None


NOTHING = History()

PromptTemplate = Callable[[Prompt, int, History], Prompt | None]
"""(prompt, member, history) -> the prompt of the member; None: the prompt template does not apply to it."""


def prompt_template(
    *, check: Callable[..., Any] | None = None
) -> Callable[[Callable[Concatenate[Prompt, int, History, Numbers], Prompt | None]], Callable[Numbers, PromptTemplate]]:
    """A decorator: a function (prompt, member, history, *, numbers) -> prompt becomes a factory of prompt templates.

    Args:
        check: raises ConfigError for numbers that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(_itself, "bound", check=check)


def _itself(bound: PromptTemplate) -> PromptTemplate:
    return bound
