"""The members of each group, and a rule applied to one group after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from mmgrpo.errors import RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

Rule = Callable[[Sequence[int]], Sequence[float | None]]


def groups(samples: Sequence[Sample]) -> Mapping[int, list[int]]:
    """The rows of each group by its number, both in increasing order, whatever the order of the samples."""
    rows_by_group: dict[int, list[int]] = {}
    for row in sorted(range(len(samples)), key=lambda row: (samples[row].group, samples[row].member)):
        rows_by_group.setdefault(samples[row].group, []).append(row)
    return rows_by_group


def is_score(value: float | None) -> TypeGuard[float]:
    """Whether a reward said something of the sample: neither None nor a failure."""
    return value is not None and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class InnerScores:
    """What another reward says of some samples.

    Attributes:
        values: one per sample.
        scores: as it gave them: numbers, or scores with explanations and parts.
    """

    values: list[float | None]
    scores: list[float | Score | None]

    def explain(self, values: Sequence[float | None]) -> list[float | Score | None]:
        """The values that were made of it, with what its own rest on and what it says of parts."""
        return [
            replace(score, value=value) if value is not None and isinstance(score, Score) else value
            for value, score in zip(values, self.scores, strict=True)
        ]


def needed_values(*rewards: Reward | None) -> tuple[str, ...]:
    """The names of ``Sample.values`` that rewards held by another read: its own ``needs_values``."""
    return tuple(sorted({name for reward in rewards for name in getattr(reward, "needs_values", ())}))


def inner_scores(reward: Reward, samples: Sequence[Sample]) -> InnerScores:
    """Asks another reward. Raises RewardError for the wrong number of values."""
    scores = list(reward(samples))
    if len(scores) != len(samples):
        raise RewardError(f"the reward within gave {len(scores)} values for {len(samples)} samples")
    return InnerScores([None if value is None else float(value) for value in scores], scores)


def within_groups(samples: Sequence[Sample], values: Sequence[float | None], rule: Rule) -> list[float | None]:
    """New values by a rule that sees a group's rows; None and failures keep out of it and stay as they are.

    Args:
        samples: what is judged.
        values: what is known of each.
        rule: gives the new values of the rows of one group that have a finite value, in their order.

    Returns:
        One value per sample, in order.
    """
    new_values = list(values)
    for rows in groups(samples).values():
        scored_rows = [row for row in rows if is_score(values[row])]
        for row, value in zip(scored_rows, rule(scored_rows) if scored_rows else [], strict=True):
            new_values[row] = value
    return new_values
