"""The contract between the engine and anything that judges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from mmgrpo.types import Sample, Score


@runtime_checkable
class Reward(Protocol):
    """Judges samples; sees whole groups, so a score may compare a sample with its siblings.

    Where a planner brings the members of a group in several rounds, it is called with those of each round, and unless
    it is ``deterministic`` once more with all that are kept.

    Returns one number per sample, in order, or a ``Score``: a number with what it rests on; None where the reward does
    not apply. It may raise: the samples it was given then count as failed, never as zero.

    What a reward may say of itself, by attributes that are True: ``concurrent``, it may run on a thread beside the
    rollout and other rewards, asked about some whole groups at a time; ``deterministic``, the score of a sample depends
    on that sample alone (its prompt with its columns, and what was generated), not on its siblings, its place or the
    moment, so that what is known is not asked for again. And by ``needs_values``, names of ``Sample.values``, what the
    policy has to say of each sample's decisions; by ``needs_columns``, the columns of the data without which it scores
    nothing: a run none of whose rows has one of them does not begin (of shipped rewards these are ``column``,
    ``text_column`` and the columns of the rewards that they wrap). A method ``reference_error(value)`` tells why a
    value of that column is no reference for it, None if it is one: a run without a readable reference does not begin.
    """

    def __call__(self, samples: Sequence[Sample], /) -> Sequence[float | Score | None]: ...


class CrossTaskReward(ABC):
    """A reward that goes by what came of the samples in another task of a mixed run.

    Attributes:
        task: the other one, which is after this reward's.
        reward: the reward there whose values it is told; None: what all of them come to.
    """

    task: str
    reward: str | None

    @abstractmethod
    def hear(self, outcomes: Mapping[tuple[int, int], float]) -> None:
        """Before it is asked about the samples of a step.

        Args:
            outcomes: the mean over what was drawn after a sample, by its group and member; none where no reward applied
                to that.
        """
