"""Groups of samples, and rules applied to each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mmgrpo.types import Sample

from ..parsing.inner_rewards import is_score

Rule = Callable[[Sequence[int]], Sequence[float | None]]


def groups(samples: Sequence[Sample]) -> Mapping[int, list[int]]:
    """Row indices by group, both in increasing order, independent of the order of the samples."""
    rows_by_group: dict[int, list[int]] = {}
    for row in sorted(range(len(samples)), key=lambda row: (samples[row].group, samples[row].member)):
        rows_by_group.setdefault(samples[row].group, []).append(row)
    return rows_by_group


def within_groups(samples: Sequence[Sample], values: Sequence[float | None], rule: Rule) -> list[float | None]:
    """Apply a rule to the scored rows of each group; None and failures are excluded and unchanged.

    Args:
        samples: the samples.
        values: one value per sample.
        rule: returns the new values of the rows of one group with finite values, in order.

    Returns:
        One value per sample, in order.
    """
    new_values = list(values)
    for rows in groups(samples).values():
        scored_rows = [row for row in rows if is_score(values[row])]
        for row, value in zip(scored_rows, rule(scored_rows) if scored_rows else [], strict=True):
            new_values[row] = value
    return new_values
