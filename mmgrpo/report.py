"""One self-contained page about a run: what it was, what it learnt, what it draws now, what it cost.

The page needs no network, no server and no other file: pictures travel in it as base64, curves as inline SVG. Whatever
the run folder lacks is said to be "not recorded"; whatever is left out for size is counted.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard

import jinja2
import yaml
from PIL import Image, ImageSequence

from mmgrpo.errors import DataError

MAX_PER_GRID = 100
MAX_VIDEOS_PER_GRID = 36
MAX_PROMPTS = 20
MAX_STRIPS = 6
MAX_STRIP_STEPS = 10
MAX_TEXTS = 20
MAX_POINTS = 500
MAX_CHARACTERS = 1500
MEDIA_BYTES = 4_800_000  # base64 makes 6.4 MB of it; the page stays under 8 MB
SIDES = (512, 384, 256, 192, 128, 96, 64)
MINUS = "\u2212"
MIME = {"PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp", "JPEG": "image/jpeg"}

KNOWN = {
    "policy/loss": "Policy loss",
    "policy/kl_mean": "KL from the reference",
    "policy/on_policy_gap": "On-policy gap",
    "optimizer/grad_norm": "Gradient norm",
    "groups/zero_std_frac": "Groups of equal reward",
    "optimizer/lr": "Learning rate",
}
EXPLAINED = {
    "policy/on_policy_gap": "rollout against recomputed log-prob",
    "groups/zero_std_frac": "fraction of groups that teach nothing",
}
PAIRED = ("policy/clip_low_frac", "policy/clip_high_frac", "policy/ratio_mean", "policy/ratio_std")
ELSEWHERE = ("step", "update", "reward/mean", "reward/std", "count/forwards_per_sample", *PAIRED)


def write_report(run: Path) -> Path:
    """Renders a run folder into ``report.html`` inside it; an earlier report is replaced.

    Args:
        run: the run folder; any of its files may be missing.

    Returns:
        The path of the page.

    Raises:
        DataError: if there is no such folder.
    """
    run = Path(run)
    if not run.is_dir():
        raise DataError(f"no run folder at {run}; a report is made from the folder that `mmgrpo train` wrote")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration, clip=clip, plain="{:.3g}".format)
    html = environment.get_template("report.html.jinja").render(_page(run))
    path = run / "report.html"
    path.write_text(html, encoding="utf-8", errors="replace")
    return path


def _page(run: Path) -> dict[str, Any]:
    about, config_text = _mapping(_text(run / "run.json") or "") or {}, _text(run / "config.yaml")
    metrics, warmup, evaluation = (_log(run, f"{name}.jsonl") for name in ("metrics", "warmup", "evaluation"))
    albums = _albums(run)
    pictures, written = _pictures(albums), _written(_ends(albums))
    versions = about.get("versions")
    return {
        "about": about,
        "name": about.get("name") or run.resolve().name,
        "folder": run.resolve().name,
        "note": _note(config_text),
        "facts": _facts(about, metrics),
        "headlines": _headlines(evaluation),
        "evaluation": evaluation,
        "measures": _measures(evaluation),
        "evaluation_charts": _evaluation_charts(evaluation),
        "pictures": pictures,
        "num_reduced": sum(1 for cell in pictures.cells if cell.picture and not cell.picture.exact) if pictures else 0,
        "texts": _texts(_ends(albums), _evenly(written, MAX_TEXTS)),
        "num_texts": len(written),
        "text_steps": [album.step for album in _ends(albums)],
        "reward_chart": _reward_chart(metrics),
        "reward_charts": _each_reward_charts(metrics),
        "policy_charts": _policy_charts(metrics, warmup),
        "other_charts": _other_charts(metrics),
        "unrecorded": [title for key, title in KNOWN.items() if not metrics.has(key)]
        + ([] if warmup.has("loss") else ["Warm-up loss"]),
        "phases": _phases(about, metrics, warmup, evaluation),
        "forwards": _mean(_by_step(metrics, "count/forwards_per_sample", max).values()),
        "config_text": config_text,
        "versions": versions if isinstance(versions, dict) else {},
        "checkpoints": sorted(path.name for path in (run / "checkpoints").glob("step-*")),
        "unreadable": [log for log in (metrics, warmup, evaluation, *(a.log for a in albums)) if log.num_unreadable],
    }


# Reading


@dataclass(frozen=True, slots=True)
class Log:
    """The readable lines of a .jsonl file, and how many were not."""

    name: str
    rows: tuple[Mapping[str, Any], ...] = ()
    num_unreadable: int = 0

    def has(self, key: str) -> bool:
        """Whether any line holds a number under the key."""
        return any(_is_number(row.get(key)) for row in self.rows)

    def numeric_keys(self) -> list[str]:
        """Every key that holds a number somewhere, in order of appearance."""
        return list(dict.fromkeys(key for row in self.rows for key, value in row.items() if _is_number(value)))


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _log(run: Path, name: str) -> Log:
    rows, num_unreadable = [], 0
    for line in (_text(run / name) or "").split("\n"):  # splitlines would also cut inside a JSON string
        if not line.strip():
            continue
        row = _mapping(line)
        if row is None:
            num_unreadable += 1
        else:
            rows.append(row)
    return Log(name, tuple(rows), num_unreadable)


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _note(config_text: str | None) -> str | None:
    try:
        config = yaml.safe_load(config_text or "")
    except yaml.YAMLError:
        return None
    note = config.get("note") if isinstance(config, dict) else None
    return note.strip() if isinstance(note, str) and note.strip() else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return fmean(kept) if kept else None


def _by_step(log: Log, key: str, pick: Callable[[list[float]], float]) -> dict[float, float]:
    """One finite value per step, picked from the step's updates; a line without a step counts as its own."""
    found: dict[float, list[float]] = {}
    for index, row in enumerate(log.rows):
        value, step = row.get(key), row.get("step")
        if _is_number(value) and math.isfinite(value):
            found.setdefault(step if _is_number(step) else index, []).append(value)
    return {step: pick(values) for step, values in sorted(found.items())}


# Numbers for people


def number(value: float | None) -> str:
    """Three decimals or three digits, trailing zeros kept; powers of ten where they are easier to read."""
    if value is None:
        return "not recorded"
    if value == 0 or not math.isfinite(value):
        return f"{value:.3f}"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 < exponent < 7:
        return f"{value / 10**exponent:.2f}\u00d7{_power_of_ten(exponent)}".replace("-", MINUS)
    return f"{value:,.{max(0, (3 if exponent >= 0 else 2) - exponent)}f}".replace("-", MINUS)


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds, the two largest that matter."""
    if seconds is None:
        return "not recorded"
    if seconds < 10:
        return f"{seconds:.{3 if seconds < 1 else 2}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def clip(text: str, most: int = MAX_CHARACTERS) -> str:
    """The text, cut where it is longer than a page should show; the cut is counted."""
    return text if len(text) <= most else f"{text[:most].rstrip()} … ({len(text) - most} more characters)"


def _power_of_ten(exponent: int) -> str:
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _moment(value: object) -> datetime | None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
        elif isinstance(value, int | float):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _elapsed(about: Mapping[str, Any]) -> float | None:
    started, finished = _moment(about.get("started")), _moment(about.get("finished"))
    return (finished - started).total_seconds() if started and finished else None


def _facts(about: Mapping[str, Any], metrics: Log) -> list[tuple[str, str]]:
    started = _moment(about.get("started"))
    num_steps = len({row.get("step", index) for index, row in enumerate(metrics.rows)})
    trained = f"{num_steps:,} steps, {len(metrics.rows):,} updates" if metrics.rows else "not recorded"
    return [
        ("Started", f"{started:%-d %B %Y, %H:%M %Z}" if started else "not recorded"),
        ("Duration", duration(_elapsed(about))),
        ("Trained", trained),
        ("Seed", str(about.get("seed", "not recorded"))),
    ]


# Curves


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: what the line is.
        points: (step, value), steps increasing.
        spread: half the height of the band around each point, if there is one.
        num_not_finite: lines of the log that held NaN or infinity.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] | None = None
    num_not_finite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """A curve in the plot's coordinates: both axes run from 0 to 100, y downwards."""

    label: str
    line: str
    band: str | None
    dots: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart ready to be written as SVG.

    Attributes:
        title: heading.
        note: a line below it.
        summary: the chart in words, for who cannot see it.
        strokes: the drawn curves.
        x_ticks: (position in percent, label).
        y_ticks: (position in percent from the top, label).
        readout: what the hover read-out needs: the axes' ranges and the curves' numbers.
    """

    title: str
    note: str
    summary: str
    strokes: tuple[Stroke, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    readout: Mapping[str, Any]


def _curve(
    log: Log, key: str, label: str, *, spread: str | None = None, pick: Callable[[list[float]], float] = fmean
) -> Curve:
    value_by_step = _by_step(log, key, pick)
    points = tuple(value_by_step.items())
    kept = _thinned([y for _, y in points])
    spread_by_step = _by_step(log, spread, fmean) if spread else {}
    return Curve(
        label=label,
        points=tuple(points[index] for index in kept),
        spread=tuple(spread_by_step.get(points[index][0], 0.0) for index in kept) if spread_by_step else None,
        num_not_finite=sum(1 for row in log.rows if _is_number(row.get(key)) and not math.isfinite(row[key])),
    )


def _thinned(values: Sequence[float]) -> list[int]:
    """Indices of at most MAX_POINTS values; of each bucket the one farthest from its mean, so that spikes stay."""
    if len(values) <= MAX_POINTS:
        return list(range(len(values)))
    edges = [round(index * len(values) / (MAX_POINTS - 2)) for index in range(MAX_POINTS - 1)]
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        mean = fmean(values[start:stop])
        kept.add(max(range(start, stop), key=lambda index: abs(values[index] - mean)))
    return sorted(kept)


def _chart(title: str, curves: Sequence[Curve], *, note: str = "", within: Sequence[float] = ()) -> Chart | None:
    """The chart of the curves that have points; None if none has. The axis holds the values ``within`` in any case."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    reach = [bound for curve in curves for bound in _span(curve)] + list(within)
    y_ticks = _ticks(min(reach), max(reach))
    steps = [step for curve in curves for step, _ in curve.points]
    first, last = min(steps), max(steps)
    x = _scale(first, last if last > first else first + 1)
    y = _scale(y_ticks[-1], y_ticks[0])
    num_not_finite = sum(curve.num_not_finite for curve in curves)
    labels, unit = _labels(y_ticks)
    remark = f"{num_not_finite} value{'s' * (num_not_finite > 1)} not finite, left out" if num_not_finite else ""
    return Chart(
        title=title,
        note="; ".join(part for part in (unit, note, remark) if part),
        summary=f"{title}. " + "; ".join(_in_words(curve) for curve in curves),
        strokes=tuple(_stroke(curve, x, y) for curve in curves),
        x_ticks=tuple((x(step), f"{step:,.0f}") for step in _whole_ticks(first, last)),
        y_ticks=tuple((y(tick), label) for tick, label in zip(y_ticks, labels, strict=True)),
        readout={
            "x": [first, last],
            "y": [y_ticks[0], y_ticks[-1]],
            "curves": [[curve.label, [[step, float(f"{v:.5g}")] for step, v in curve.points]] for curve in curves],
        },
    )


def _span(curve: Curve) -> tuple[float, float]:
    spread = curve.spread or (0.0,) * len(curve.points)
    low = min(y - s for (_, y), s in zip(curve.points, spread, strict=True))
    return low, max(y + s for (_, y), s in zip(curve.points, spread, strict=True))


def _scale(at_0: float, at_100: float) -> Callable[[float], float]:
    return lambda value: round(100 * (value - at_0) / (at_100 - at_0), 2) + 0.0


def _stroke(curve: Curve, x: Callable[[float], float], y: Callable[[float], float]) -> Stroke:
    band = None
    if curve.spread:
        above = [f"{x(step)} {y(v + s)}" for (step, v), s in zip(curve.points, curve.spread, strict=True)]
        below = [f"{x(step)} {y(v - s)}" for (step, v), s in zip(curve.points, curve.spread, strict=True)]
        band = "M" + "L".join(above + below[::-1]) + "Z"
    at = [f"{x(step)} {y(value)}" for step, value in curve.points]
    dots = "".join(f"M{point}h0" for point in at) if len(at) <= 20 else None
    return Stroke(label=curve.label, line="M" + "L".join(at), band=band, dots=dots)


def _in_words(curve: Curve) -> str:
    values = [value for _, value in curve.points]
    return (
        f"{curve.label}: {number(values[0])} at step {curve.points[0][0]:g}, {number(values[-1])} at step "
        f"{curve.points[-1][0]:g}, lowest {number(min(values))}, highest {number(max(values))}"
    )


def _ticks(low: float, high: float) -> list[float]:
    """About four round numbers that enclose the range; zero is one of them where it is near."""
    if 0 < low < high / 2:
        low = 0.0
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        margin = abs(high) / 10 or 1.0
        low, high = low - margin, high + margin
    unit = _round_up((high - low) / 4)
    return [index * unit for index in range(math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9) + 1)]


def _whole_ticks(first: float, last: float) -> list[float]:
    unit = max(1, round(_round_up((last - first) / 6 or 1)))
    return [index * unit for index in range(math.ceil(first / unit), math.floor(last / unit) + 1)]


def _round_up(value: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= value * (1 - 1e-9))


def _labels(ticks: Sequence[float]) -> tuple[list[str], str]:
    """The ticks' labels, and the unit they are in where that is not 1."""
    exponent = math.floor(math.log10(max(abs(tick) for tick in ticks)))
    shift = 0 if -2 <= exponent < 6 else exponent
    unit = (ticks[1] - ticks[0]) / 10**shift
    decimals = next(places for places in range(16) if abs(round(unit, places) - unit) < 1e-6 * unit)
    labels = [f"{round(tick / 10**shift, decimals) + 0.0:,.{decimals}f}".replace("-", MINUS) for tick in ticks]
    return labels, f"in {_power_of_ten(shift)}" if shift else ""


# The charts of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """An evaluated measure, from its first value to its last."""

    name: str
    first: float
    last: float
    first_step: float
    last_step: float


def _measures(evaluation: Log) -> dict[str, str]:
    """Name of each evaluated measure -> its key."""
    keys = [key for key in evaluation.numeric_keys() if key.startswith("eval/") and key.endswith("/mean")]
    return {key.removeprefix("eval/").removesuffix("/mean"): key for key in keys}


def _headlines(evaluation: Log) -> list[Headline]:
    found = {name: list(_by_step(evaluation, key, fmean).items()) for name, key in _measures(evaluation).items()}
    return [
        Headline(name=name, first=points[0][1], last=points[-1][1], first_step=points[0][0], last_step=points[-1][0])
        for name, points in found.items()
        if points
    ]


def _evaluation_charts(evaluation: Log) -> list[Chart]:
    """Measures that stay within 0..1 share a chart; every other one has its own."""
    curves = [_curve(evaluation, key, name) for name, key in _measures(evaluation).items()]
    shared = [curve for curve in curves if curve.points and _span(curve)[0] >= 0 and _span(curve)[1] <= 1][:6]
    charts = [_chart("Held-out measures", shared, within=(0.0, 1.0))]
    charts += [_chart(curve.label, [curve]) for curve in curves if curve not in shared]
    return [chart for chart in charts if chart]


def _reward_chart(metrics: Log) -> Chart | None:
    band = metrics.has("reward/std")
    note = "mean of the step's samples, band: one standard deviation either side" if band else ""
    return _chart("Reward", [_curve(metrics, "reward/mean", "mean", spread="reward/std" if band else None)], note=note)


def _each_reward_charts(metrics: Log) -> list[Chart]:
    charts = []
    for key in metrics.numeric_keys():
        match = re.fullmatch(r"reward/(.+)/mean", key)
        if not match:
            continue
        failed = max(_by_step(metrics, f"reward/{match[1]}/failed_frac", max).values(), default=0.0)
        note = f"failed on up to {failed:.1%} of a step's samples" if failed else ""
        charts.append(_chart(match[1], [_curve(metrics, key, "mean", spread=f"reward/{match[1]}/std")], note=note))
    return [chart for chart in charts if chart]


def _policy_charts(metrics: Log, warmup: Log) -> list[Chart]:
    charts = [_chart("Policy loss", [_curve(metrics, "policy/loss", "loss")])]
    sides = {"low": "below the bound", "high": "above it"}
    clipped = [_curve(metrics, f"policy/clip_{side}_frac", label) for side, label in sides.items()]
    charts.append(_chart("Fraction of ratios clipped", clipped, within=(0.0,)))
    ratio = _curve(metrics, "policy/ratio_mean", "mean", spread="policy/ratio_std")
    charts.append(_chart("Probability ratio", [ratio], note="band: one standard deviation" if ratio.spread else ""))
    for key, title in KNOWN.items():
        pick = (lambda values: values[0]) if key == "policy/on_policy_gap" else fmean
        if key != "policy/loss":
            charts.append(_chart(title, [_curve(metrics, key, title, pick=pick)], note=EXPLAINED.get(key, "")))
    charts.append(
        _chart("Warm-up loss", [_curve(warmup, "loss", "loss")], note="before the first step, by warm-up step")
    )
    return [chart for chart in charts if chart]


def _other_charts(metrics: Log) -> list[Chart]:
    shown = re.compile(r"time/.*|reward/.+/(mean|std|failed_frac)")
    keys = [key for key in metrics.numeric_keys() if key not in (*KNOWN, *ELSEWHERE) and not shown.fullmatch(key)]
    return [chart for key in keys if (chart := _chart(key, [_curve(metrics, key, key)]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Where time went: a phase's seconds, its share of the whole, and its mean over ``num`` occasions."""

    name: str
    total_s: float
    frac: float
    num: int
    occasion: str


def _phases(about: Mapping[str, Any], metrics: Log, warmup: Log, evaluation: Log) -> list[Phase]:
    """Seconds by phase.

    Every update of a step repeats the step's rollout and reward times, so those count once; the warm-up's clock counts
    up, and from zero again after a resume.
    """
    picks = {"rollout": max, "reward": max, "update": sum}
    steps = {name: _by_step(metrics, f"time/{name}_s", pick) for name, pick in picks.items()}
    rows = [(name, sum(values.values()), len(values), "step") for name, values in steps.items() if values]
    warm = list(_by_step(warmup, "time_s", max).items())
    if warm:
        times = [value for _, value in warm] + [0.0]
        rows.insert(0, ("warm-up", sum(a for a, b in pairwise(times) if b < a), int(warm[-1][0]) or 1, "step"))
    keys = [key for key in evaluation.numeric_keys() if re.fullmatch(r"time.*_s", key)]
    spent = [sum(_by_step(evaluation, key, sum).values()) for key in keys]
    if spent:
        rows.append(("evaluation", sum(spent), len(evaluation.rows), "evaluation"))
    rest = (_elapsed(about) or 0.0) - sum(row[1] for row in rows)
    if rows and rest > 0:
        rows.append(("everything else", rest, 0, ""))
    whole = sum(row[1] for row in rows) or 1.0
    return [Phase(name=n, total_s=s, frac=s / whole, num=num, occasion=per) for n, s, num, per in rows]


# Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One recorded sample."""

    prompt: str
    path: Path | None
    text: str | None
    rewards: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Album:
    """The samples of one evaluated step; line i of two albums answers the same request."""

    step: int
    log: Log
    shots: tuple[Shot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture or a short video as it travels in the page; ``exact`` if it is the file itself."""

    uri: str
    width: int
    height: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A picture in its place; ``bars`` holds how full each reward's bar is, or None where it does not apply."""

    request: int
    picture: Picture | None
    alt: str
    bars: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A reward before and after; None where it was not given."""

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRow:
    """One prompt's pictures, a strip per step, and its mean rewards."""

    prompt: str
    strips: tuple[tuple[Cell, ...], ...]
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The grids before and after, and a few requests over time.

    Attributes:
        steps: the first evaluated step and the last, or the only one.
        rows: the grids, prompt by prompt.
        strip_steps: steps of the gallery.
        strips: the gallery; each strip holds one cell per step.
        scales: per reward, what an empty and a full bar stand for.
        num_requests: requests recorded at those steps.
        num_unmatched: lines that ask something else at the last step than at the first, left out.
    """

    steps: tuple[int, ...]
    rows: tuple[PictureRow, ...]
    strip_steps: tuple[int, ...]
    strips: tuple[PictureRow, ...]
    scales: Mapping[str, tuple[float, float]]
    num_requests: int
    num_unmatched: int

    @property
    def cells(self) -> list[Cell]:
        """Every cell, row by row."""
        return [cell for row in (*self.rows, *self.strips) for strip in row.strips for cell in strip]

    @property
    def is_small(self) -> bool:
        """Whether every picture is so small that its pixels should be seen."""
        return all(max(cell.picture.width, cell.picture.height) <= 64 for cell in self.cells if cell.picture)

    @property
    def num_shown(self) -> int:
        """Requests in a grid."""
        return sum(len(row.strips[0]) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One request's answers, a text per step, and their rewards."""

    prompt: str
    answers: tuple[str | None, ...]
    changes: tuple[Change, ...]


def _albums(run: Path) -> list[Album]:
    """Every step that has samples, in order."""
    folders = [path.parent for path in run.glob("samples/step-*/samples.jsonl") if path.parent.name[5:].isdigit()]
    albums = []
    for folder in folders:
        log = _log(run, f"samples/{folder.name}/samples.jsonl")
        if log.rows:
            shots = tuple(_shot(row, folder) for row in log.rows)
            albums.append(Album(step=int(folder.name[5:]), log=log, shots=shots))
    return sorted(albums, key=lambda album: album.step)


def _shot(row: Mapping[str, Any], folder: Path) -> Shot:
    rewards = row.get("rewards")
    numbers = rewards.items() if isinstance(rewards, dict) else ()
    return Shot(
        prompt=str(row.get("prompt", "")),
        path=folder / row["file"] if isinstance(row.get("file"), str) else None,
        text=row["text"] if isinstance(row.get("text"), str) else None,
        rewards={name: value for name, value in numbers if _is_number(value) and math.isfinite(value)},
    )


def _ends(albums: Sequence[Album]) -> list[Album]:
    return [albums[0], albums[-1]] if len(albums) > 1 else list(albums)


def _requests(ends: Sequence[Album]) -> list[int]:
    """Lines that ask the same at the first step and the last."""
    if not ends:
        return []
    num_lines = min(len(album.shots) for album in ends)
    return [index for index in range(num_lines) if ends[0].shots[index].prompt == ends[-1].shots[index].prompt]


def _evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _pictures(albums: Sequence[Album]) -> Pictures | None:
    ends = _ends(albums)
    requests = _requests(ends)
    drawn = [index for index in requests if any(album.shots[index].path for album in ends)]
    if not drawn:
        return None
    by_prompt: dict[str, list[int]] = {}
    for index in drawn:
        by_prompt.setdefault(ends[0].shots[index].prompt, []).append(index)
    prompts = _evenly(list(by_prompt), MAX_PROMPTS)
    moving = any(shot.path and shot.path.suffix in (".gif", ".webp") for album in ends for shot in album.shots)
    most = (MAX_VIDEOS_PER_GRID if moving else MAX_PER_GRID) // len(prompts)
    shown = {prompt: by_prompt[prompt][:most] for prompt in prompts}
    strips = _strip_requests(list(by_prompt.values())) if len(albums) > 1 else []
    timeline = _timeline(albums) if strips else []
    num_cells = len(ends) * sum(map(len, shown.values())) + len(strips) * len(timeline)
    easel = Easel(share=MEDIA_BYTES // num_cells, scales=_scales(ends))
    return Pictures(
        steps=tuple(album.step for album in ends),
        rows=tuple(
            PictureRow(
                prompt=prompt,
                strips=tuple(tuple(easel.cell(album, index) for index in shown[prompt]) for album in ends),
                changes=_changes(ends, by_prompt[prompt]),
            )
            for prompt in prompts
        ),
        strip_steps=tuple(album.step for album in timeline),
        strips=tuple(
            PictureRow(
                prompt=ends[0].shots[index].prompt, strips=(tuple(easel.cell(album, index) for album in timeline),)
            )
            for index in strips
        ),
        scales=easel.scales,
        num_requests=len(drawn),
        num_unmatched=min(len(album.shots) for album in ends) - len(requests),
    )


def _timeline(albums: Sequence[Album]) -> list[Album]:
    """A few albums from the first to the last, at equal distances where that leaves at least six."""
    last = len(albums) - 1
    strides = [
        stride for stride in range(1, last + 1) if last % stride == 0 and 6 <= last // stride + 1 <= MAX_STRIP_STEPS
    ]
    return list(albums[:: strides[0]]) if strides else _evenly(albums, MAX_STRIP_STEPS)


def _strip_requests(groups: Sequence[Sequence[int]]) -> list[int]:
    """The first request of each of a few prompts; where prompts are fewer, their next ones too."""
    deep = max(len(group) for group in groups)
    in_turn = [group[rank] for rank in range(deep) for group in groups if rank < len(group)]
    return sorted(_evenly(in_turn[: len(groups)], MAX_STRIPS) if len(groups) > MAX_STRIPS else in_turn[:MAX_STRIPS])


def _scales(ends: Sequence[Album]) -> dict[str, tuple[float, float]]:
    """Per reward the values of an empty and a full bar: 0 and 1 where all fit, else the range seen."""
    values: dict[str, list[float]] = {}
    for shot in (shot for album in ends for shot in album.shots):
        for name, value in shot.rewards.items():
            values.setdefault(name, []).append(value)
    return {
        name: (0.0, 1.0) if min(seen) >= 0 and max(seen) <= 1 else (min(seen), max(seen))
        for name, seen in values.items()
    }


def _changes(ends: Sequence[Album], requests: Sequence[int]) -> tuple[Change, ...]:
    """Mean reward of the requests at the first step and the last, reward by reward."""
    names = dict.fromkeys(name for album in ends for index in requests for name in album.shots[index].rewards)
    means = {
        name: [
            _mean(a.shots[index].rewards[name] for index in requests if name in a.shots[index].rewards) for a in ends
        ]
        for name in names
    }
    return tuple(Change(name=name, before=mean[0], after=mean[-1]) for name, mean in means.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Easel:
    """Makes cells: ``share`` is how many bytes a picture may take, ``scales`` the rewards' bars."""

    share: int
    scales: Mapping[str, tuple[float, float]]

    def cell(self, album: Album, request: int) -> Cell:
        """The album's answer to a request; empty where it has none."""
        shot = album.shots[request] if request < len(album.shots) else None
        if shot is None or shot.path is None:
            return Cell(request=request, picture=None, alt=f"step {album.step}: no picture", bars=())
        rewards = "".join(f"; {name} {number(value)}" for name, value in shot.rewards.items())
        return Cell(
            request=request,
            picture=_picture(shot.path, self.share),
            alt=f"step {album.step}: {clip(shot.prompt, 200)}{rewards}",
            bars=tuple(self._filled(shot.rewards.get(name), *self.scales[name]) for name in list(self.scales)[:3]),
        )

    def _filled(self, value: float | None, empty: float, full: float) -> float | None:
        if value is None:
            return None
        return min(1.0, max(0.0, (value - empty) / (full - empty))) if full > empty else 1.0


def _picture(path: Path, share: int) -> Picture | None:
    """The file itself if it takes at most ``share`` bytes, else a smaller WebP; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            image.load()
            if path.stat().st_size <= share and image.format in MIME:
                return _carried(path.read_bytes(), MIME[image.format], image.size, exact=True)
            return _reduced(image, share)
    except (OSError, SyntaxError, ValueError):
        return None


def _reduced(image: Image.Image, share: int) -> Picture:
    frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    length_ms = sum(frame.info.get("duration", 100) for frame in frames)
    frames = _evenly(frames, 16)
    fitting = [side for side in SIDES if side <= max(image.size) and side * side * len(frames) <= 12 * share]
    for side in (*fitting, SIDES[-1]):
        for frame in frames:
            frame.thumbnail((side, side))
        data = _webp(frames, length_ms / len(frames))
        if len(data) <= share:
            return _carried(data, MIME["WEBP"], frames[0].size, exact=False)
    return _carried(_webp(frames[:1], 0), MIME["WEBP"], frames[0].size, exact=False)


def _webp(frames: Sequence[Image.Image], frame_ms: float) -> bytes:
    buffer = io.BytesIO()
    moving = {"save_all": True, "append_images": frames[1:], "duration": round(frame_ms), "loop": 0}
    frames[0].save(buffer, "WEBP", quality=80, **(moving if len(frames) > 1 else {}))
    return buffer.getvalue()


def _carried(data: bytes, mime: str, size: tuple[int, int], *, exact: bool) -> Picture:
    uri = f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
    return Picture(uri=uri, width=size[0], height=size[1], exact=exact)


def _written(ends: Sequence[Album]) -> list[int]:
    return [index for index in _requests(ends) if any(album.shots[index].text is not None for album in ends)]


def _texts(ends: Sequence[Album], requests: Sequence[int]) -> list[TextRow]:
    return [
        TextRow(
            prompt=ends[0].shots[index].prompt,
            answers=tuple(album.shots[index].text for album in ends),
            changes=_changes(ends, [index]),
        )
        for index in requests
    ]
