"""What a method learnt on a task, over the seeds it was run with.

A difference between two methods is taken seed by seed, as their runs of a seed share prompts, noise and the weights
that they begin with; how far it can be trusted is Student's t interval of those differences.
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
"""What is logged of how alike the members of a group are."""

LAST = 0.25
"""Share of the steps at the end whose mean is given as the last reward and diversity."""

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t of 1, 2, ... degrees of freedom that 97.5 % lie below."""


ROUNDING = 1e-6
"""Differences that deviate by no more are equal: what is measured is of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """The numbers of one run.

    Attributes:
        reward: step -> mean of its samples.
        forwards: step -> forwards until then, those of warm-up and evaluation left out.
        seconds: step -> seconds until then, likewise.
        measured: evaluated measure -> step -> value.
        diversity: what is logged of it -> step -> value.
    """

    reward: Mapping[float, float]
    forwards: Mapping[float, float]
    seconds: Mapping[float, float]
    measured: Mapping[str, Mapping[float, float]]
    diversity: Mapping[str, Mapping[float, float]]


@dataclass(frozen=True, slots=True)
class SeedMean:
    """Mean over the seeds and sample deviation; no deviation of one seed alone."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedMean | None:
        """None of no values."""
        if not values:
            return None
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference and half its 95 % interval; none of one seed alone, nor of seeds that say the same."""

    mean: float
    half: float | None

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the interval leaves out 0."""
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
        diversity={key: found for key in DIVERSITY if (found := by_step(metrics, key, fmean))},
    )


def _seconds(metrics: Log) -> dict[float, float]:
    """Rollout and rewards of a step, which each of its lines repeats, and all of its updates."""
    once = [by_step(metrics, f"time/{part}_s", fmean) for part in ("rollout", "reward")]
    return {
        step: took + sum(part.get(step, 0.0) for part in once)
        for step, took in by_step(metrics, "time/update_s", sum).items()
    }


def _running(of_step: Mapping[float, float]) -> dict[float, float]:
    return dict(zip(of_step, accumulate(of_step.values()), strict=True))


def over_seeds(
    found: Sequence[Mapping[float, float]], label: str, at: Sequence[Mapping[float, float]] = ()
) -> MetricCurve:
    """The mean over the seeds at every step that all have, with their sample deviation as a band.

    Args:
        found: step -> value, of each seed.
        label: of the curve.
        at: step -> where on the axis, of each seed, whose mean is taken; none: at the step.

    Returns:
        The curve.
    """
    steps = sorted(set.intersection(*(set(one) for one in (*found, *at)))) if found else []
    spreads = [SeedMean.of([one[step] for one in found]) for step in steps]
    places = [fmean(one[step] for one in at) if at else step for step in steps]
    kept = [
        (x, y) for x, y in zip(places, spreads, strict=True) if y is not None and is_finite(x) and is_finite(y.mean)
    ]
    return MetricCurve(
        label=label,
        points=tuple((x, y.mean) for x, y in kept),
        spread=tuple(y.deviation or 0.0 for _, y in kept) if len(found) > 1 else None,
    )


def at_the_end(values: Mapping[float, float]) -> float | None:
    """The mean over the last quarter of the steps."""
    steps = sorted(values)
    kept = steps[-max(1, round(len(steps) * LAST)) :]
    return fmean(values[step] for step in kept) if kept else None


def last(values: Mapping[float, float]) -> float | None:
    """The value of the last step."""
    return values[max(values)] if values else None


def spread_of(runs: Iterable[SeedRun], take: Callable[[SeedRun], float | None]) -> SeedMean | None:
    """A number of each run over the seeds; those that lack it are left out."""
    return SeedMean.of([value for run in runs if (value := take(run)) is not None])


def difference(values: Sequence[float | None], others: Sequence[float | None]) -> Difference | None:
    """How much larger the one is than the other, seed by seed.

    Args:
        values: of each seed; None where there is none.
        others: of the same seeds.

    Returns:
        The mean of the differences and half of its 95 % interval, t s / sqrt(n); None where no seed has both. Of
        differences that are equal, as counts of few samples are by chance, s = 0 would promise too much.
    """
    pairs = [a - b for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    spread = SeedMean.of(pairs)
    if spread is None:
        return None
    if spread.deviation is None or spread.deviation <= ROUNDING:
        return Difference(spread.mean, None)
    t = T_975[min(len(pairs) - 2, len(T_975) - 1)]
    return Difference(spread.mean, t * spread.deviation / math.sqrt(len(pairs)))
