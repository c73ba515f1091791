"""A page that compares methods on a task, and its table in Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mmgrpo.report.curves import Chart, MetricCurve, draw_chart, span
from mmgrpo.report.number_format import MINUS, duration, number, within
from mmgrpo.report.page_templates import write_page
from mmgrpo.report.run_comparison import same_requests
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import environment, read_about
from mmgrpo.report.seed_stats import (
    DIVERSITY,
    Difference,
    SeedMean,
    SeedRun,
    difference,
    final_mean,
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
        name: name of the method.
        folders: the run folder of each seed, in the order of the seeds; None: the run did not finish.
    """

    name: str
    folders: tuple[Path | None, ...]

    @property
    def missing(self) -> int:
        """Number of runs that did not finish."""
        return sum(folder is None for folder in self.folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """A row of the table.

    Attributes:
        name: name of the method.
        runs: the numbers of each seed; None if its run did not finish.
        measured: measure -> its first and last value.
        against: difference of the first measure's last value from that of the baseline method.
        reward: mean over the last quarter of the steps.
        diversity: mean over the last quarter of the steps.
        forwards: total number of forwards.
        seconds: total seconds.
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
    "± of a measure is one sample deviation over the seeds; ± of a difference from the first method is half of the "
    "95 % interval of the mean difference (Student's t); a single seed, or equal differences, give no interval."
)


def write_methods(title: str, command: str, members: Sequence[MethodRuns], folder: Path, *, num_jobs: int = 1) -> Path:
    """Writes ``comparison.html``, ``comparison.md`` and ``comparison.json`` of methods on one task.

    Args:
        title: the task.
        command: the command that runs the comparison.
        members: the methods; each is compared with the first.
        folder: output folder.
        num_jobs: number of runs at a time.

    Returns:
        The path of the page.
    """
    rows = _rows(members)
    about = next((read_about(RunFiles(path)) for member in members for path in member.folders if path), {})
    table, legend = table_of(rows), [LEGEND] if len(rows) > 1 else []
    notes = [f"Times were measured with {num_jobs} runs at a time on one machine."] if num_jobs > 1 else []
    values: dict[str, Any] = {
        "title": title,
        "command": command,
        "rows": rows,
        "names": _measures(rows),
        "bars": _bars(rows),
        "sections": [(panel.title, f"by {panel.axis}", _multiples(panel, rows)) for panel in _panels(rows)],
        "num_seeds": max(len(member.folders) for member in members),
        "missing": [(member.name, member.missing) for member in members if member.missing],
        "notes": notes,
        "table": [*table, "", *legend, *notes],
        "environment": environment(about),
        **same_requests(_seed_folders(members)),
        "date": str(about.get("started", ""))[:10],
    }
    replace_text(folder / "comparison.md", "\n".join(values["table"]) + "\n")
    replace_text(folder / "comparison.json", json.dumps({row.name: _plain(row) for row in rows}, indent=2))
    return write_page(folder / "comparison.html", "methods.html.jinja", values)


def table_of(rows: Sequence[MethodSummary]) -> list[str]:
    """The lines of a Markdown table: mean and deviation over the seeds, and the difference from the first row."""
    names = _measures(rows)
    heads = ["method", *names, f"{names[0] if names else 'reward'} against {rows[0].name}", "reward", "diversity"]
    lines = [[*heads, "forwards", "time"], ["---"] * (len(heads) + 2)]
    for row in rows:
        ends = [_first_to_last(*row.measured.get(name, (None, None))) for name in names]
        tail = [
            _with_deviation(row.reward),
            _with_deviation(row.diversity),
            _count_text(row.forwards),
            _duration_text(row.seconds),
        ]
        lines.append([row.name, *ends, difference_text(row.against) if row is not rows[0] else "", *tail])
    return [f"| {' | '.join(line)} |" for line in lines]


def difference_text(gap: Difference | None) -> str:
    """A difference with its interval, and whether the interval excludes 0."""
    if gap is None:
        return ""
    if gap.half is None:
        return f"{_signed(gap.mean)} (no interval)"
    text = within(gap.mean, gap.half, _signed(gap.mean))
    return f"{text}{', beyond noise' if gap.is_beyond_noise else ''}"


def _rows(members: Sequence[MethodRuns]) -> list[MethodSummary]:
    named_runs = [
        (member.name, tuple(read_run(RunFiles(path)) if path else None for path in member.folders))
        for member in members
    ]
    first = named_runs[0][1]
    main = next((name for run in first if run for name in run.measured), None)
    return [_row(name, runs, first, main) for name, runs in named_runs]


def _row(
    name: str, runs: tuple[SeedRun | None, ...], first: tuple[SeedRun | None, ...], main: str | None
) -> MethodSummary:
    runs_done = [run for run in runs if run]
    names = list(dict.fromkeys(measure for run in runs_done for measure in run.measured))
    ends = [[_main_value(run, main) for run in of] for of in (runs, first)]
    return MethodSummary(
        name=name,
        runs=runs,
        measured={
            measure: (
                spread_of(runs_done, lambda run, m=measure: _first(run.measured.get(m, {}))),
                spread_of(runs_done, lambda run, m=measure: last(run.measured.get(m, {}))),
            )
            for measure in names
        },
        against=difference(*ends),
        reward=spread_of(runs_done, lambda run: final_mean(run.reward)),
        diversity=spread_of(runs_done, lambda run: next(map(final_mean, run.diversity.values()), None)),
        forwards=spread_of(runs_done, lambda run: last(run.forwards)),
        seconds=spread_of(runs_done, lambda run: last(run.seconds)),
    )


def _main_value(run: SeedRun | None, measure: str | None) -> float | None:
    """The value that methods are compared by: the first evaluated measure, or the reward if there is none."""
    if run is None:
        return None
    return final_mean(run.reward) if measure is None else last(run.measured.get(measure, {}))


def _first(values: Mapping[float, float]) -> float | None:
    return values[min(values)] if values else None


def _measures(rows: Sequence[MethodSummary]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.measured))


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart of every method.

    Attributes:
        title: heading.
        values: maps a run to step -> value.
        axis: name of the horizontal axis.
        at: maps a run to step -> position on the axis; None: the step.
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
    """A chart of each method with the first one, on one scale; a chart of the first if there is no other."""
    curves = {row.name: _curve(panel, row) for row in rows}
    spans = [span(curve) for curve in curves.values() if curve.points]
    within = [min(low for low, _ in spans), max(high for _, high in spans)] if spans else []
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
    """The difference of each method from the first as a bar with its interval, in percent of the widest."""
    differences = [(row.name, row.against) for row in rows[1:] if row.against]
    widest = max((abs(gap.mean) + (gap.half or 0.0) for _, gap in differences), default=0.0) or 1.0
    return [
        {
            "name": name,
            "at": round(50 + 50 * gap.mean / widest, 2),
            "low": round(50 + 50 * (gap.mean - (gap.half or 0.0)) / widest, 2),
            "width": round(100 * (gap.half or 0.0) / widest, 2),
            "text": difference_text(gap),
            "beyond": gap.is_beyond_noise,
        }
        for name, gap in differences
    ]


def _seed_folders(members: Sequence[MethodRuns]) -> dict[str, Path]:
    """Method -> its run of the first seed that most methods finished."""
    by_seed = [
        {member.name: path for member in members if (path := member.folders[seed])}
        for seed in range(min(len(member.folders) for member in members))
    ]
    return max(by_seed, key=len, default={})


def _plain(row: MethodSummary) -> dict[str, Any]:
    """A row as JSON: the values of each number in the order of the seeds."""
    names = row.measured
    return {
        **{name: [run and last(run.measured.get(name, {})) for run in row.runs] for name in names},
        **{f"{name} at first": [run and _first(run.measured.get(name, {})) for run in row.runs] for name in names},
        "reward": [run and final_mean(run.reward) for run in row.runs],
        "diversity": [run and next(map(final_mean, run.diversity.values()), None) for run in row.runs],
        "forwards": [run and last(run.forwards) for run in row.runs],
        "seconds": [run and last(run.seconds) for run in row.runs],
        "difference": None if row.against is None else [row.against.mean, row.against.half],
    }


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", MINUS)


def _with_deviation(value: SeedMean | None) -> str:
    if value is None:
        return ""
    return number(value.mean) if value.deviation is None else within(value.mean, value.deviation)


def _first_to_last(first: SeedMean | None, final: SeedMean | None) -> str:
    return "" if first is None or final is None else f"{number(first.mean)} → {_with_deviation(final)}"


def _count_text(value: SeedMean | None) -> str:
    return "" if value is None else f"{value.mean:,.0f}"


def _duration_text(value: SeedMean | None) -> str:
    return "" if value is None else duration(value.mean)
