"""Statistics of a method on a task over seeds.

Differences between methods are paired by seed, because runs of one seed share prompts, noise and initial weights; their
uncertainty is Student's t interval of the paired differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev

from mmgrpo.report.curves import MetricCurve
from mmgrpo.report.logs import Log, by_step, is_finite, read_log
from mmgrpo.report.run_charts import measures
from mmgrpo.report.run_files import RunFiles

DIVERSITY = {
    "samples/pixel_spread": "spread of a group's pixels",
    "samples/distinct_frac": "share of a group's texts that differ",
}
"""Metrics of the diversity within a group, with their titles."""

LAST = 0.25
"""Share of the last steps whose mean is the final reward and diversity."""

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""The 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom."""


ROUNDING = 1e-6
"""Differences whose deviation is at most this are equal, as measurements are float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """The numbers of one run.

    Attributes:
        reward: step -> mean reward of its samples.
        forwards: step -> cumulative forwards without warm-up and evaluation.
        seconds: step -> cumulative seconds without warm-up and evaluation.
        measured: evaluated measure -> step -> value.
        diversity: diversity metric -> step -> value.
    """

    reward: Mapping[float, float]
    forwards: Mapping[float, float]
    seconds: Mapping[float, float]
    measured: Mapping[str, Mapping[float, float]]
    diversity: Mapping[str, Mapping[float, float]]


@dataclass(frozen=True, slots=True)
class SeedMean:
    """Mean and sample deviation over the seeds; no deviation for a single seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedMean | None:
        """The mean of some values; None if there are none."""
        if not values:
            return None
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference and half of its 95 % interval; no interval for a single seed or equal differences."""

    mean: float
    half: float | None

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half is not None and abs(self.mean) > self.half


def read_run(files: RunFiles) -> SeedRun:
    """The numbers of a run folder."""
    metrics, evaluation = read_log(files, "metrics.jsonl"), read_log(files, "evaluation.jsonl")
    per_sample, samples = by_step(metrics, "count/forwards_per_sample", max), by_step(metrics, "count/samples", fmean)
    return SeedRun(
        reward=by_step(metrics, "reward/mean", lambda values: values[0]),
        forwards=_running({step: per_sample[step] * samples.get(step, math.nan) for step in per_sample}),
        seconds=_running(_seconds(metrics)),
        measured={name: by_step(evaluation, key, fmean) for name, key in measures(evaluation).items()},
        diversity={key: values for key in DIVERSITY if (values := by_step(metrics, key, fmean))},
    )


def _seconds(metrics: Log) -> dict[float, float]:
    """Seconds of a step: rollout and rewards, which each line of the step repeats, and the sum of its updates."""
    repeated = [by_step(metrics, f"time/{part}_s", fmean) for part in ("rollout", "reward")]
    return {
        step: update_s + sum(part.get(step, 0.0) for part in repeated)
        for step, update_s in by_step(metrics, "time/update_s", sum).items()
    }


def _running(of_step: Mapping[float, float]) -> dict[float, float]:
    return dict(zip(of_step, accumulate(of_step.values()), strict=True))


def over_seeds(
    values_by_seed: Sequence[Mapping[float, float]], label: str, at: Sequence[Mapping[float, float]] = ()
) -> MetricCurve:
    """The mean over the seeds at every step that all seeds have, with the sample deviation as a band.

    Args:
        values_by_seed: step -> value, for each seed.
        label: label of the curve.
        at: step -> position on the axis, for each seed, of which the mean is used; empty: the step.

    Returns:
        The curve.
    """
    steps = sorted(set.intersection(*(set(values) for values in (*values_by_seed, *at)))) if values_by_seed else []
    spreads = [SeedMean.of([values[step] for values in values_by_seed]) for step in steps]
    positions = [fmean(values[step] for values in at) if at else step for step in steps]
    points = [
        (x, y) for x, y in zip(positions, spreads, strict=True) if y is not None and is_finite(x) and is_finite(y.mean)
    ]
    return MetricCurve(
        label=label,
        points=tuple((x, y.mean) for x, y in points),
        spread=tuple(y.deviation or 0.0 for _, y in points) if len(values_by_seed) > 1 else None,
    )


def final_mean(values: Mapping[float, float]) -> float | None:
    """The mean over the last quarter of the steps."""
    steps = sorted(values)
    last_steps = steps[-max(1, round(len(steps) * LAST)) :]
    return fmean(values[step] for step in last_steps) if last_steps else None


def last(values: Mapping[float, float]) -> float | None:
    """The value of the last step."""
    return values[max(values)] if values else None


def spread_of(runs: Iterable[SeedRun], take: Callable[[SeedRun], float | None]) -> SeedMean | None:
    """Mean and deviation of a number over the runs that have it."""
    return SeedMean.of([value for run in runs if (value := take(run)) is not None])


def difference(values: Sequence[float | None], others: Sequence[float | None]) -> Difference | None:
    """The mean difference of values paired by seed.

    Args:
        values: value of each seed, or None.
        others: values of the baseline for the same seeds.

    Returns:
        The mean of the differences and half of its 95 % interval, t s / sqrt(n); None if no seed has both. Equal
        differences (s = 0), which small counts give by chance, have no interval.
    """
    pairs = [a - b for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    spread = SeedMean.of(pairs)
    if spread is None:
        return None
    if spread.deviation is None or spread.deviation <= ROUNDING:
        return Difference(spread.mean, None)
    t = T_975[min(len(pairs) - 2, len(T_975) - 1)]
    return Difference(spread.mean, t * spread.deviation / math.sqrt(len(pairs)))
