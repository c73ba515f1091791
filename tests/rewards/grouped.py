"""Samples in groups, and rewards that read their score off a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmgrpo.types import Prompt, Sample, Score


def members(*texts: str | None, group: int = 0, scores: Sequence[Any] = (), **fields: Any) -> list[Sample]:
    """A group whose members wrote these texts; ``scores`` are their columns ``score``, ``fields`` lists of theirs."""
    result = []
    for i, text in enumerate(texts):
        columns = {"score": scores[i]} if scores else {}
        values_of_member = {name: values[i] for name, values in fields.items()}
        result.append(Sample(Prompt("q", columns=columns), group=group, member=i, text=text, **values_of_member))
    return result


def scored(*scores: float | None, group: int = 0) -> list[Sample]:
    """A group whose members have these columns ``score``."""
    return members(*("x" for _ in scores), group=group, scores=scores)


def in_group(samples: Sequence[Sample], group: int) -> list[Sample]:
    return [replace(sample, group=group) for sample in samples]


def plain(values: Sequence[float | Score | None]) -> list[float | None]:
    """The numbers without what they rest on."""
    return [None if value is None else float(value) for value in values]


def column_score(samples: Sequence[Sample]) -> list[float | None]:
    """A reward: the column ``score``."""
    return [sample.prompt.columns["score"] for sample in samples]


def column_chance(samples: Sequence[Sample]) -> list[float | None]:
    """A reward: the column ``chance``."""
    return [sample.prompt.columns.get("chance") for sample in samples]
