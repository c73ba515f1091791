"""Methods side by side on one task: a page, and the table of it to be pasted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mmgrpo.report.curves import Chart, MetricCurve, draw_chart, span
from mmgrpo.report.logs import parse_mapping
from mmgrpo.report.number_format import MINUS, duration, number, within
from mmgrpo.report.page_templates import write_page
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import environment
from mmgrpo.report.seed_stats import (
    DIVERSITY,
    Difference,
    SeedMean,
    SeedRun,
    at_the_end,
    difference,
    last,
    over_seeds,
    read_run,
    spread_of,
)
from mmgrpo.system.files import replace_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRuns:
    """The runs of a method.

    Attributes:
        name: of the method.
        folders: the run folder of each seed, in the order of the seeds; None: its run did not end.
    """

    name: str
    folders: tuple[Path | None, ...]

    @property
    def missing(self) -> int:
        """How many runs did not end."""
        return sum(folder is None for folder in self.folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """A method in the table.

    Attributes:
        name: of the method.
        runs: the numbers of each seed; None where it did not end.
        measured: the first value and the last of each evaluated measure.
        against: how much the first measure's last value exceeds that of the method it is compared with.
        reward: at the end.
        diversity: at the end.
        forwards: in all.
        seconds: in all.
    """

    name: str
    runs: tuple[SeedRun | None, ...]
    measured: Mapping[str, tuple[SeedMean | None, SeedMean | None]]
    against: Difference | None
    reward: SeedMean | None
    diversity: SeedMean | None
    forwards: SeedMean | None
    seconds: SeedMean | None


LEGEND = (
    "± of a measure is one sample deviation over the seeds; ± of what a method has against the first is half of the "
    "95 % interval of the mean difference (Student's t); one seed, or seeds that all say the same, give none."
)


def write_methods(title: str, command: str, members: Sequence[MethodRuns], folder: Path, *, num_jobs: int = 1) -> Path:
    """Writes ``comparison.html``, ``comparison.md`` and ``comparison.json`` of methods that ran on one task.

    Args:
        title: the task.
        command: what to type for the same.
        members: the methods; each is compared with the first.
        folder: where to.
        num_jobs: how many of them ran at a time.

    Returns:
        The page.
    """
    rows = _rows(members)
    about = next((_about(path) for one in members for path in one.folders if path), {})
    table, legend = table_of(rows), [LEGEND] if len(rows) > 1 else []
    shared = [f"Times were taken with {num_jobs} runs at a time, which share one machine."] if num_jobs > 1 else []
    values = {
        "title": title,
        "command": command,
        "rows": rows,
        "names": _measures(rows),
        "bars": _bars(rows),
        "sections": [(panel.title, f"by {panel.axis}", _multiples(panel, rows)) for panel in _panels(rows)],
        "num_seeds": max(len(one.folders) for one in members),
        "missing": [(one.name, one.missing) for one in members if one.missing],
        "shared": shared,
        "table": [*table, "", *legend, *shared],
        "environment": environment(about),
        "date": str(about.get("started", ""))[:10],
    }
    replace_text(folder / "comparison.md", "\n".join(values["table"]) + "\n")
    replace_text(folder / "comparison.json", json.dumps({row.name: _plain(row) for row in rows}, indent=2))
    return write_page(folder / "comparison.html", "methods.html.jinja", values)


def table_of(rows: Sequence[MethodSummary]) -> list[str]:
    """The lines of a table in Markdown: mean and deviation over the seeds, and the difference from the first row."""
    names = _measures(rows)
    heads = ["method", *names, f"{names[0] if names else 'reward'} against {rows[0].name}", "reward", "diversity"]
    lines = [[*heads, "forwards", "time"], ["---"] * (len(heads) + 2)]
    for row in rows:
        ends = [_moved(*row.measured.get(name, (None, None))) for name in names]
        tail = [_said(row.reward), _said(row.diversity), _many(row.forwards), _took(row.seconds)]
        lines.append([row.name, *ends, against_text(row.against) if row is not rows[0] else "", *tail])
    return [f"| {' | '.join(line)} |" for line in lines]


def against_text(found: Difference | None) -> str:
    """A difference with its interval, and whether that leaves out 0."""
    if found is None:
        return ""
    if found.half is None:
        return f"{_signed(found.mean)} (no interval)"
    said = within(found.mean, found.half, _signed(found.mean))
    return f"{said}{', beyond noise' if found.is_beyond_noise else ''}"


def _rows(members: Sequence[MethodRuns]) -> list[MethodSummary]:
    found = [(one.name, tuple(read_run(RunFiles(path)) if path else None for path in one.folders)) for one in members]
    first = found[0][1]
    main = next((name for run in first if run for name in run.measured), None)
    return [_row(name, runs, first, main) for name, runs in found]


def _row(
    name: str, runs: tuple[SeedRun | None, ...], first: tuple[SeedRun | None, ...], main: str | None
) -> MethodSummary:
    there = [run for run in runs if run]
    names = list(dict.fromkeys(measure for run in there for measure in run.measured))
    ends = [[_main(run, main) for run in of] for of in (runs, first)]
    return MethodSummary(
        name=name,
        runs=runs,
        measured={
            measure: (
                spread_of(there, lambda run, m=measure: _first(run.measured.get(m, {}))),
                spread_of(there, lambda run, m=measure: last(run.measured.get(m, {}))),
            )
            for measure in names
        },
        against=difference(*ends),
        reward=spread_of(there, lambda run: at_the_end(run.reward)),
        diversity=spread_of(there, lambda run: next(map(at_the_end, run.diversity.values()), None)),
        forwards=spread_of(there, lambda run: last(run.forwards)),
        seconds=spread_of(there, lambda run: last(run.seconds)),
    )


def _main(run: SeedRun | None, measure: str | None) -> float | None:
    """What a method is judged by: the first evaluated measure, or the reward where there is none."""
    if run is None:
        return None
    return at_the_end(run.reward) if measure is None else last(run.measured.get(measure, {}))


def _first(values: Mapping[float, float]) -> float | None:
    return values[min(values)] if values else None


def _measures(rows: Sequence[MethodSummary]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.measured))


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart of every method.

    Attributes:
        title: heading.
        values: step -> what is drawn, of a run.
        axis: what a point is at.
        at: step -> where on the axis; None: at the step.
    """

    title: str
    values: Callable[[SeedRun], Mapping[float, float]]
    axis: str = "step"
    at: Callable[[SeedRun], Mapping[float, float]] | None = None


def _panels(rows: Sequence[MethodSummary]) -> list[Panel]:
    measured = [Panel(f"{name}, held out", partial(_measured, name=name)) for name in _measures(rows)]
    logged = {key for row in rows for run in row.runs if run for key in run.diversity}
    return [
        *measured[:1],
        Panel("Reward against updates", lambda run: run.reward),
        Panel("Reward against forwards", lambda run: run.reward, "thousand forwards", _thousands),
        Panel("Reward against time", lambda run: run.reward, "second", lambda run: run.seconds),
        *(Panel(DIVERSITY[key].capitalize(), partial(_diversity, key=key)) for key in DIVERSITY if key in logged),
        *measured[1:],
    ]


def _measured(run: SeedRun, name: str) -> Mapping[float, float]:
    return run.measured.get(name, {})


def _diversity(run: SeedRun, key: str) -> Mapping[float, float]:
    return run.diversity.get(key, {})


def _thousands(run: SeedRun) -> dict[float, float]:
    return {step: count / 1000 for step, count in run.forwards.items()}


def _multiples(panel: Panel, rows: Sequence[MethodSummary]) -> list[Chart]:
    """Each method beside the first, on one scale; the first alone where there is no other."""
    curves = {row.name: _curve(panel, row) for row in rows}
    drawn = [span(curve) for curve in curves.values() if curve.points]
    within = [min(low for low, _ in drawn), max(high for _, high in drawn)] if drawn else []
    first, *others = curves.values()
    pairs = {curve.label: [curve, first] for curve in others} or {first.label: [first]}
    charts = [draw_chart(name, pair, within=within, axis=panel.axis) for name, pair in pairs.items()]
    return [chart for chart in charts if chart]


def _curve(panel: Panel, row: MethodSummary) -> MetricCurve:
    runs = [run for run in row.runs if run]
    return over_seeds(
        [panel.values(run) for run in runs], row.name, [panel.at(run) for run in runs] if panel.at else ()
    )


def _bars(rows: Sequence[MethodSummary]) -> list[dict[str, Any]]:
    """Each method's difference from the first as a bar with its interval, in percent of the widest."""
    found = [(row.name, row.against) for row in rows[1:] if row.against]
    widest = max((abs(one.mean) + (one.half or 0.0) for _, one in found), default=0.0) or 1.0
    return [
        {
            "name": name,
            "at": round(50 + 50 * one.mean / widest, 2),
            "low": round(50 + 50 * (one.mean - (one.half or 0.0)) / widest, 2),
            "width": round(100 * (one.half or 0.0) / widest, 2),
            "said": against_text(one),
            "beyond": one.is_beyond_noise,
        }
        for name, one in found
    ]


def _about(folder: Path) -> dict[str, Any]:
    return parse_mapping(RunFiles(folder).text("run.json") or "") or {}


def _plain(row: MethodSummary) -> dict[str, Any]:
    """A row for programs: of each number the values of the seeds in order."""
    names = row.measured
    return {
        **{name: [run and last(run.measured.get(name, {})) for run in row.runs] for name in names},
        **{f"{name} at first": [run and _first(run.measured.get(name, {})) for run in row.runs] for name in names},
        "reward": [run and at_the_end(run.reward) for run in row.runs],
        "diversity": [run and next(map(at_the_end, run.diversity.values()), None) for run in row.runs],
        "forwards": [run and last(run.forwards) for run in row.runs],
        "seconds": [run and last(run.seconds) for run in row.runs],
        "difference": None if row.against is None else [row.against.mean, row.against.half],
    }


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", MINUS)


def _said(found: SeedMean | None) -> str:
    if found is None:
        return ""
    return number(found.mean) if found.deviation is None else within(found.mean, found.deviation)


def _moved(first: SeedMean | None, end: SeedMean | None) -> str:
    return "" if first is None or end is None else f"{number(first.mean)} → {_said(end)}"


def _many(found: SeedMean | None) -> str:
    return "" if found is None else f"{found.mean:,.0f}"


def _took(found: SeedMean | None) -> str:
    return "" if found is None else duration(found.mean)
