"""Curves of logged metrics, and charts of curves ready for SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from mmgrpo.report.logs import Log, by_step, is_finite, is_number
from mmgrpo.report.number_format import number
from mmgrpo.report.ticks import enclosing_ticks, integer_ticks, tick_labels

MAX_POINTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurve:
    """One line of a chart.

    Attributes:
        label: label of the line.
        points: (step, value), steps increasing.
        spread: half the height of the band around each point, if there is one.
        is_share: every averaged value was 0 or 1, so the axis and the band stay within 0..1.
        num_not_finite: number of log lines with NaN or infinity.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] | None = None
    is_share: bool = False
    num_not_finite: int = 0

    @property
    def band(self) -> list[tuple[float, float]]:
        """Lower and upper bound of the band at each point; both are the value if there is no band."""
        spread = self.spread or (0.0,) * len(self.points)
        around = [(y - s, y + s) for (_, y), s in zip(self.points, spread, strict=True)]
        return [(max(low, 0.0), min(high, 1.0)) for low, high in around] if self.is_share else around


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedCurve:
    """A curve in the plot's coordinates: both axes run from 0 to 100, y downwards.

    Attributes:
        label: label of the curve.
        series: index among the requested curves, which selects its color.
        line: SVG path.
        band: SVG path of the band, if there is one.
        dots: SVG path of the points, if they are few.
    """

    label: str
    series: int
    line: str
    band: str | None
    dots: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart ready to be written as SVG.

    Attributes:
        title: heading.
        note: a line below it.
        remark: the note without the unit of the axis.
        summary: the chart in words, for screen readers.
        curves: the curves with points.
        strokes: the plotted curves.
        is_named: several curves were requested, so each has a label.
        x_ticks: (position in percent, label).
        y_ticks: (position in percent from the top, label).
        readout: data of the hover read-out: the ranges of the axes and the numbers of the curves.
    """

    title: str
    note: str
    remark: str
    summary: str
    curves: tuple[MetricCurve, ...]
    strokes: tuple[PlottedCurve, ...]
    is_named: bool
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    readout: Mapping[str, Any]

    @property
    def is_constant(self) -> bool:
        """Whether every curve is constant."""
        return all(len({y for _, y in c.points}) == 1 and not any(c.spread or ()) for c in self.curves) and not any(
            c.num_not_finite for c in self.curves
        )


def read_curve(
    log: Log, key: str, label: str, *, spread: str | None = None, pick: Callable[[list[float]], float] = fmean
) -> MetricCurve:
    """The curve of a logged number, one point per step; ``pick`` reduces the updates of a step to one value."""
    value_by_step = by_step(log, key, pick)
    points = tuple(value_by_step.items())
    indices = _thinned([y for _, y in points])
    spread_by_step = by_step(log, spread, fmean) if spread else {}
    return MetricCurve(
        label=label,
        points=tuple(points[index] for index in indices),
        spread=tuple(spread_by_step.get(points[index][0], 0.0) for index in indices) if spread_by_step else None,
        is_share=bool(spread_by_step) and all(_is_binary(y, spread_by_step.get(step, 0.0)) for step, y in points),
        num_not_finite=sum(1 for row in log.rows if is_number(row.get(key)) and not is_finite(row[key])),
    )


def _is_binary(mean: float, spread: float) -> bool:
    """Whether a mean and a standard deviation are those of values 0 and 1: s^2 = m (1 - m)."""
    variance = mean * (1 - mean)
    return 0 <= mean <= 1 and abs(spread * spread - variance) <= 1e-3 * variance + 1e-6


def draw_chart(
    title: str, curves: Sequence[MetricCurve], *, note: str = "", within: Sequence[float] = (), axis: str = "step"
) -> Chart | None:
    """The chart of the curves that have points; None if none has.

    Args:
        title: heading.
        curves: the requested curves.
        note: a line below the heading.
        within: values that the vertical axis always includes.
        axis: name of the horizontal axis.

    Returns:
        The chart.
    """
    numbered = [(series, curve) for series, curve in enumerate(curves) if curve.points]
    if not numbered:
        return None
    is_named, curves = len(curves) > 1, [curve for _, curve in numbered]
    shares = (0.0, 1.0) if all(curve.is_share for curve in curves) else ()
    reach = [bound for curve in curves for bound in span(curve)] + list(within) + list(shares)
    y_ticks = enclosing_ticks(min(reach), max(reach))
    steps = [step for curve in curves for step, _ in curve.points]
    first, last = min(steps), max(steps)
    x = _scale(first, last if last > first else first + 1)
    y = _scale(y_ticks[-1], y_ticks[0])
    num_not_finite = sum(curve.num_not_finite for curve in curves)
    labels, unit = tick_labels(y_ticks)
    remark = f"{num_not_finite} value{'s' * (num_not_finite > 1)} not finite, left out" if num_not_finite else ""
    return Chart(
        title=title,
        note="; ".join(part for part in (unit, note, remark) if part),
        remark="; ".join(part for part in (note, remark) if part),
        summary=f"{title}. " + "; ".join(_in_words(curve, axis) for curve in curves),
        curves=tuple(curves),
        strokes=tuple(_stroke(curve, series, x, y) for series, curve in numbered),
        is_named=is_named,
        x_ticks=tuple((x(step), f"{step:,.0f}") for step in integer_ticks(first, last)),
        y_ticks=tuple((y(tick), label) for tick, label in zip(y_ticks, labels, strict=True)),
        readout={
            "axis": axis,
            "x": [first, last],
            "y": [y_ticks[0], y_ticks[-1]],
            "curves": [[curve.label, [[step, float(f"{v:.5g}")] for step, v in curve.points]] for curve in curves],
        },
    )


def span(curve: MetricCurve) -> tuple[float, float]:
    """Lowest and highest value, the band included."""
    return min(low for low, _ in curve.band), max(high for _, high in curve.band)


def _thinned(values: Sequence[float]) -> list[int]:
    """Indices of at most MAX_POINTS values; of each bucket the value farthest from its mean, so spikes remain."""
    if len(values) <= MAX_POINTS:
        return list(range(len(values)))
    edges = [round(index * len(values) / (MAX_POINTS - 2)) for index in range(MAX_POINTS - 1)]
    indices = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        mean = fmean(values[start:stop])
        indices.add(max(range(start, stop), key=lambda index: abs(values[index] - mean)))
    return sorted(indices)


def _scale(at_0: float, at_100: float) -> Callable[[float], float]:
    return lambda value: round(100 * (value - at_0) / (at_100 - at_0), 2) + 0.0


def _stroke(curve: MetricCurve, series: int, x: Callable[[float], float], y: Callable[[float], float]) -> PlottedCurve:
    band = None
    if curve.spread:
        above = [f"{x(step)} {y(high)}" for (step, _), (_, high) in zip(curve.points, curve.band, strict=True)]
        below = [f"{x(step)} {y(low)}" for (step, _), (low, _) in zip(curve.points, curve.band, strict=True)]
        band = "M" + "L".join(above + below[::-1]) + "Z"
    at = [f"{x(step)} {y(value)}" for step, value in curve.points]
    dots = "".join(f"M{point}h0" for point in at) if len(at) <= 20 else None
    return PlottedCurve(label=curve.label, series=series, line="M" + "L".join(at), band=band, dots=dots)


def _in_words(curve: MetricCurve, axis: str) -> str:
    values = [value for _, value in curve.points]
    return (
        f"{curve.label}: {number(values[0])} at {axis} {curve.points[0][0]:g}, {number(values[-1])} at {axis} "
        f"{curve.points[-1][0]:g}, lowest {number(min(values))}, highest {number(max(values))}"
    )
