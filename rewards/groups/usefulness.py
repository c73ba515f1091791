"""A reward for a behavior where it helps the group, and a penalty where it hurts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import within_groups


@final
class WhereUseful:
    """Reward: 1 or -1 for texts with a behavior, depending on whether group members with it score higher or lower.

    A text has the behavior if it contains any of ``marks``. With m the mean of an inner reward over the members with
    the behavior minus the mean over the others: 1 for members with it if m > ``margin``, -1 if m < -``margin``, 0
    otherwise. 0 for members without it, and if all members or none have it. None if the inner reward is None or there
    is no text.

    Example: ``{name: where_useful, of: math_verify, marks: [<aux>]}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``marks``, substrings that indicate the behavior;
    ``margin``, in units of the inner reward.
    Range: -1, 0 and 1.
    Source: Wang et al. 2025 (GeometryZero), arXiv:2506.07160, group contrastive masking of the reward for auxiliary
    constructions, according to a public review and the paper's referees.
    Traps: it does not depend on the correctness of the sample itself, so add ``of`` as a separate reward with a larger
    weight.
    """

    def __init__(self, of: Reward, marks: Sequence[str], margin: float = 0.0) -> None:
        if isinstance(marks, str) or not marks or not all(marks):
            raise ConfigError(f"WhereUseful.marks must be a list of substrings, got {marks!r}")
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
    """For members with the behavior, the sign of their mean reward minus that of the others, with a margin."""
    parts = [[reward for reward, done in zip(rewards, does, strict=True) if done is which] for which in (True, False)]
    if not all(parts):
        return [0.0] * len(does)
    gain = fmean(parts[0]) - fmean(parts[1])
    sign = float(gain > margin) - float(gain < -margin)
    return [sign * done for done in does]
