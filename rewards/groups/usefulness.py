"""A reward for doing something where it helps the group, and against doing it where it does harm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from .grouping import inner_scores, is_score, needed_values, within_groups


@final
class WhereUseful:
    """Reward: 1 or -1 for texts that do something, by whether those of their group that do it fare better or worse.

    A text does it if it holds any of ``marks``. With m the mean of another reward over the group's members that do it
    less that over those that do not: 1 for those that do it where m > ``margin``, -1 where m < -``margin``, 0
    otherwise. 0 for members that do not, and where all members do or none does. None where the reward has None or there
    is no text.

    Example: ``{name: where_useful, of: math_verify, marks: [<aux>]}``.
    Settings: ``of``, the reward with its settings, or its bare name; ``marks``, what a text holds that does it;
    ``margin``, in units of the reward.
    Range: -1, 0 and 1.
    Source: Wang et al. 2025 (GeometryZero), arXiv:2506.07160, group contrastive masking of the reward for auxiliary
    constructions, as a public review and the paper's referees have it.
    Traps: it says nothing of whether the sample itself is right, so give ``of`` beside it, of the larger weight.
    """

    def __init__(self, of: Reward, marks: Sequence[str], margin: float = 0.0) -> None:
        if isinstance(marks, str) or not marks or not all(marks):
            raise ConfigError(f"WhereUseful.marks lists what a text holds that does it, got {marks!r}")
        if margin < 0:
            raise ConfigError(f"WhereUseful.margin must be at least 0, got {margin}")
        self.needs_values = needed_values(of)
        self.of = of
        self._marks = tuple(marks)
        self._margin = margin

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        values = [None if sample.text is None else value for sample, value in zip(samples, inner.values, strict=True)]

        def rule(rows: Sequence[int]) -> list[float]:
            rewards = [value for row in rows if is_score(value := values[row])]
            does = [any(mark in (samples[row].text or "") for mark in self._marks) for row in rows]
            return useful(rewards, does, self._margin)

        return inner.explain(within_groups(samples, values, rule))


def useful(rewards: Sequence[float], does: Sequence[bool], margin: float) -> list[float]:
    """The sign of mean reward of those that do it less that of the others, beyond a margin, on those that do it."""
    parts = [[reward for reward, done in zip(rewards, does, strict=True) if done is which] for which in (True, False)]
    if not all(parts):
        return [0.0] * len(does)
    gain = fmean(parts[0]) - fmean(parts[1])
    sign = float(gain > margin) - float(gain < -margin)
    return [sign * done for done in does]
