"""Sections of charts without constant charts and without repeated curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgrpo.report.curves import Chart, MetricCurve
from mmgrpo.report.number_format import number


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSection:
    """The charts of a part of the page.

    Attributes:
        charts: the charts to draw.
        constants: (title, value, remark) of the constant charts.
        repeated: (title, title of the chart with the same curves, remark) of charts that repeat earlier curves.
    """

    charts: tuple[Chart, ...] = ()
    constants: tuple[tuple[str, str, str], ...] = ()
    repeated: tuple[tuple[str, str, str], ...] = ()


def unique_sections(charts_of: Mapping[str, Sequence[Chart]]) -> dict[str, ChartSection]:
    """The sections of a page, in order; a curve of an earlier chart is not repeated."""
    plotted: list[tuple[MetricCurve, str]] = []
    sections = {}
    for name, charts in charts_of.items():
        new_charts, constants, repeated = [], [], []
        for chart in charts:
            if chart.is_constant:
                constants.append((chart.title, _value(chart), chart.remark))
                continue
            titles = [
                next((title for other, title in plotted if _is_same(curve, other)), None) for curve in chart.curves
            ]
            if all(titles):
                repeated.append((chart.title, titles[0] or "", chart.remark))
                continue
            plotted += [(curve, chart.title) for curve in chart.curves]
            new_charts.append(chart)
        sections[name] = ChartSection(charts=tuple(new_charts), constants=tuple(constants), repeated=tuple(repeated))
    return sections


def _is_same(curve: MetricCurve, plotted: MetricCurve) -> bool:
    """Whether a curve has the points of a plotted one, and no other band."""
    return curve.points == plotted.points and curve.spread in (None, plotted.spread)


def _value(chart: Chart) -> str:
    """The constant value of each curve, labeled if there are several."""
    values = [(f"{curve.label} " if chart.is_named else "") + number(curve.points[0][1]) for curve in chart.curves]
    return ", ".join(values)
