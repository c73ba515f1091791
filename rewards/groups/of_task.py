"""Reward from a downstream task: credit of a prompt for the images generated from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from mmgrpo.reward import CrossTaskReward
from mmgrpo.types import Sample


@final
class OfTask(CrossTaskReward):
    """Reward: mean reward of the downstream samples that another task of a mixed run generates from this sample.

    None without scored downstream samples.

    Example: ``{name: of_task, task: painter}``.
    Settings: ``task``, a downstream task (``task.after``); ``reward``, the label of one of its rewards; default: the
    weighted total of its rewards.
    Range: that of the downstream rewards.
    Source: a rewriter is rewarded for the images of its prompts: PromptRL, arXiv:2602.01382.
    Traps: it uses the samples of one step, so evaluations, which have no downstream samples, give None.
    """

    def __init__(self, task: str, reward: str | None = None) -> None:
        self.task = task
        self.reward = reward
        self._outcomes: Mapping[tuple[int, int], float] = {}

    def receive(self, outcomes: Mapping[tuple[int, int], float]) -> None:
        """Store the outcomes and discard earlier ones."""
        self._outcomes = outcomes

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._outcomes.get(sample.identity) for sample in samples]
