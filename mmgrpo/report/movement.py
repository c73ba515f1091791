"""The change of a request's scores over a run, each reward on a separate scale."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from mmgrpo.report.sample_sets import SampleSet


def scales_of(ends: Sequence[SampleSet], excluded: Container[str]) -> dict[str, tuple[float, float]]:
    """Reward -> values of an empty and a full bar: 0 and 1 if all values are within, else the recorded range."""
    values: dict[str, list[float]] = {}
    for record in (record for sample_set in ends for record in sample_set.records):
        for name, value in record.rewards.items():
            values.setdefault(name, []).append(value)
    return {
        name: (0.0, 1.0) if min(recorded) >= 0 and max(recorded) <= 1 else (min(recorded), max(recorded))
        for name, recorded in values.items()
        if name not in excluded
    }


def movement_of(ends: Sequence[SampleSet], request: int, scales: Mapping[str, tuple[float, float]]) -> float:
    """Mean rise of a request's scores, each relative to its scale; 0 if no reward has both values."""
    before, after = ends[0].records[request].rewards, ends[-1].records[request].rewards
    rises = [
        (after[name] - before[name]) / (full - empty)
        for name, (empty, full) in scales.items()
        if name in before and name in after and full > empty
    ]
    return sum(rises) / max(len(rises), 1)
