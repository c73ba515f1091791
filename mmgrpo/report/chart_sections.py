"""What of the charts is drawn: no curve twice, and none that never moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgrpo.report.curves import Chart, MetricCurve
from mmgrpo.report.number_format import number


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSection:
    """The charts of a part of the page.

    Attributes:
        charts: what is drawn.
        constants: (title, value, remark) of those that never move.
        repeated: (title, title of the chart that shows the same curves, remark) of those that are drawn already.
    """

    charts: tuple[Chart, ...] = ()
    constants: tuple[tuple[str, str, str], ...] = ()
    repeated: tuple[tuple[str, str, str], ...] = ()


def drawn_once(charts_of: Mapping[str, Sequence[Chart]]) -> dict[str, ChartSection]:
    """The sections of a page, in its order, each without what an earlier one or itself shows already."""
    drawn: list[tuple[MetricCurve, str]] = []
    found = {}
    for name, charts in charts_of.items():
        shown, constants, repeated = [], [], []
        for chart in charts:
            if chart.is_constant:
                constants.append((chart.title, _value(chart), chart.remark))
                continue
            titles = [next((title for curve, title in drawn if _is_same(one, curve)), None) for one in chart.curves]
            if all(titles):
                repeated.append((chart.title, titles[0] or "", chart.remark))
                continue
            drawn += [(curve, chart.title) for curve in chart.curves]
            shown.append(chart)
        found[name] = ChartSection(charts=tuple(shown), constants=tuple(constants), repeated=tuple(repeated))
    return found


def _is_same(curve: MetricCurve, drawn: MetricCurve) -> bool:
    """Whether a curve adds nothing to one that is drawn."""
    return curve.points == drawn.points and curve.spread in (None, drawn.spread)


def _value(chart: Chart) -> str:
    """The one value of each curve, named where there are several."""
    values = [(f"{curve.label} " if chart.is_named else "") + number(curve.points[0][1]) for curve in chart.curves]
    return ", ".join(values)
