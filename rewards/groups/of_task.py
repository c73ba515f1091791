"""What another task of the run made of samples: the credit of a prompt for the images that were drawn of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from mmgrpo.reward import CrossTaskReward
from mmgrpo.types import Sample


@final
class OfTask(CrossTaskReward):
    """Reward: the mean reward of what another task of a mixed run drew after this sample.

    None where nothing was judged.

    Example: ``{name: of_task, task: painter}``.
    Settings: ``task``, one that is after this one (``task.after``); ``reward``, the label of one of its rewards; if not
    given, what its rewards come to.
    Range: that of the rewards there.
    Source: a rewriter is credited with the images of its prompts: PromptRL, arXiv:2602.01382.
    Traps: it is of the samples of one step, so that evaluations, where nothing is drawn after, have none of it.
    """

    def __init__(self, task: str, reward: str | None = None) -> None:
        self.task = task
        self.reward = reward
        self._outcomes: Mapping[tuple[int, int], float] = {}

    def hear(self, outcomes: Mapping[tuple[int, int], float]) -> None:
        """Takes the place of what was heard before."""
        self._outcomes = outcomes

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._outcomes.get(sample.identity) for sample in samples]
