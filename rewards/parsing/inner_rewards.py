"""Rewards within rewards: their scores, and the values that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from mmgrpo.errors import RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score


def is_score(value: float | None) -> TypeGuard[float]:
    """Whether a value is a score: neither None nor a failure."""
    return value is not None and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class InnerScores:
    """Scores of an inner reward.

    Attributes:
        values: one per sample.
        scores: the returned values: numbers, or scores with explanations and scopes.
    """

    values: list[float | None]
    scores: list[float | Score | None]

    def explain(self, values: Sequence[float | None]) -> list[float | Score | None]:
        """New values with the explanations and scopes of the inner scores."""
        return [
            replace(score, value=value) if value is not None and isinstance(score, Score) else value
            for value, score in zip(values, self.scores, strict=True)
        ]


def needed_values(*rewards: Reward | None) -> tuple[str, ...]:
    """Names of ``Sample.values`` that inner rewards require: the ``needs_values`` of the outer reward."""
    return tuple(sorted({name for reward in rewards for name in getattr(reward, "needs_values", ())}))


def inner_scores(reward: Reward, samples: Sequence[Sample]) -> InnerScores:
    """Call an inner reward. Raises RewardError for the wrong number of values."""
    scores = list(reward(samples))
    if len(scores) != len(samples):
        raise RewardError(f"the inner reward returned {len(scores)} values for {len(samples)} samples")
    return InnerScores([None if value is None else float(value) for value in scores], scores)
