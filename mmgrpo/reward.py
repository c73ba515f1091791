"""The interface of rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from mmgrpo.types import Sample, Score


@runtime_checkable
class Reward(Protocol):
    """Scores samples; receives complete groups, so a score may compare a sample with its group.

    If a strategy samples a group in several rounds, the reward is called on each round, and, unless it is
    ``deterministic``, once more on all retained samples.

    Returns one number per sample, in order, or a ``Score`` (a number with its explanation); None where the reward does
    not apply. It may raise: the samples of that call then count as failed, never as zero.

    Optional attributes: ``concurrent`` (bool): the reward may run on a thread in parallel to the rollout and other
    rewards, on some complete groups at a time. ``deterministic`` (bool): the score of a sample depends only on that
    sample (its prompt with its columns, and the generated output), not on its group, position or time, so results are
    cached. ``reads_environments`` (bool): it reads ``Sample.environment``, so that on several processes an evaluation,
    too, calls it in each process with the samples of that process. ``reads_latents`` (bool): it reads
    ``Sample.latent`` and no image, video or audio; if all rewards do, samples are not decoded. ``needs_values``:
    names of ``Sample.values`` that the policy must compute. ``needs_columns``: required data columns; a run without
    any row that has them raises an error (for built-in rewards these are ``column``, ``text_column`` and the
    columns of wrapped rewards). The method ``reference_error(value)`` returns why a value of that column is not a
    valid reference, or None; a run without a readable reference raises an error.
    """

    def __call__(self, samples: Sequence[Sample], /) -> Sequence[float | Score | None]: ...


class CrossTaskReward(ABC):
    """A reward computed from the results of the samples in another task of a mixed run.

    Attributes:
        task: the downstream task, which runs after this reward's task.
        reward: name of the downstream reward that it uses; None: the weighted total.
    """

    task: str
    reward: str | None

    @abstractmethod
    def receive(self, outcomes: Mapping[tuple[int, int], float]) -> None:
        """Receive the downstream outcomes before the samples of a step are scored.

        Args:
            outcomes: mean outcome of the downstream samples of each sample, by its group and member; missing where no
                reward applied.
        """
