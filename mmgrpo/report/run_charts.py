"""The charts of a run: evaluation, rewards and optimization."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from mmgrpo.report.curves import Chart, draw_chart, read_curve, span
from mmgrpo.report.logs import Log, by_step
from mmgrpo.report.number_format import number

TITLES = {
    "policy/loss": "Policy loss",
    "policy/kl_mean": "KL from the reference",
    "policy/on_policy_gap": "On-policy gap",
    "optimizer/grad_norm": "Gradient norm",
    "groups/zero_std_frac": "Groups of equal reward",
    "optimizer/lr": "Learning rate",
}
NOTES = {
    "policy/on_policy_gap": "rollout against recomputed log-prob",
    "groups/zero_std_frac": "fraction of groups without a learning signal",
}
PAIRED = ("policy/clip_low_frac", "policy/clip_high_frac", "policy/ratio_mean", "policy/ratio_std")
SHARES = {
    "failed on": "failed_frac",
    "closed by its gate for": "gated_frac",
    "clipped for": "clipped_frac",
    "cached for": "cached_frac",
}
OF_TEXTS = ("completions/mean_length", "completions/max_length", "completions/clipped_frac", "policy/entropy_mean")
ELSEWHERE = ("step", "update", "reward/mean", "reward/std", "count/forwards_per_sample", *PAIRED, *OF_TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The first and the last value of an evaluated measure."""

    name: str
    first: float
    last: float
    first_step: float
    last_step: float


def measures(evaluation: Log) -> dict[str, str]:
    """Name of an evaluated measure -> its key."""
    keys = [key for key in evaluation.numeric_keys() if key.startswith("eval/") and key.endswith("/mean")]
    return {key.removeprefix("eval/").removesuffix("/mean"): key for key in keys}


def headlines(evaluation: Log) -> list[Headline]:
    """The evaluated measures with a finite value."""
    points_by_name = {name: list(by_step(evaluation, key, fmean).items()) for name, key in measures(evaluation).items()}
    return [
        Headline(name=name, first=points[0][1], last=points[-1][1], first_step=points[0][0], last_step=points[-1][0])
        for name, points in points_by_name.items()
        if points
    ]


def evaluation_charts(evaluation: Log) -> list[Chart]:
    """One chart of the measures within 0..1, and a chart for each other measure."""
    curves = [read_curve(evaluation, key, name) for name, key in measures(evaluation).items()]
    shared = [curve for curve in curves if curve.points and span(curve)[0] >= 0 and span(curve)[1] <= 1][:6]
    charts = [draw_chart("Held-out measures", shared, within=(0.0, 1.0))]
    charts += [draw_chart(curve.label, [curve]) for curve in curves if curve not in shared]
    return [chart for chart in charts if chart]


def reward_charts(metrics: Log, tasks: Sequence[str] = ()) -> list[Chart]:
    """Charts of the recorded total rewards, one per task of a mixed run, and of each reward."""
    totals = [_total_chart(metrics, title, key) for key, title in total_rewards(tasks).items()]
    return [*(chart for chart in totals if chart), *_each_reward_charts(metrics)]


def total_rewards(tasks: Sequence[str]) -> dict[str, str]:
    """Key of a total reward -> its title; one per task of a mixed run."""
    return {f"{task}/reward/mean": f"Reward of {task}" for task in tasks} or {"reward/mean": "Reward"}


def _total_chart(metrics: Log, title: str, key: str) -> Chart | None:
    std = key.removesuffix("mean") + "std"
    spread = std if metrics.has(std) else None
    note = "mean of the step's samples, band: one standard deviation either side" if spread else ""
    return draw_chart(title, [read_curve(metrics, key, "mean", spread=spread)], note=note)


def _each_reward_charts(metrics: Log) -> list[Chart]:
    """A chart per reward; the note has the shares of failed, gated, clipped and cached samples, and its weights."""
    charts = []
    for key in metrics.numeric_keys():
        match = re.fullmatch(r"reward/(.+)/mean", key)
        if not match:
            continue
        largest = {label: max(_shares(metrics, match[1], key).values(), default=0.0) for label, key in SHARES.items()}
        notes = [f"{label} up to {share:.1%} of a step's samples" for label, share in largest.items() if share]
        weights = list(_shares(metrics, match[1], "weight").values())
        notes += [f"weight {number(weights[0])} to {number(weights[-1])}"] if weights else []
        note = "; ".join(notes)
        charts.append(
            draw_chart(match[1], [read_curve(metrics, key, "mean", spread=f"reward/{match[1]}/std")], note=note)
        )
    return [chart for chart in charts if chart]


def _shares(metrics: Log, name: str, key: str) -> dict[float, float]:
    return by_step(metrics, f"reward/{name}/{key}", max)


def completion_charts(metrics: Log) -> list[Chart]:
    """Charts of the length, truncation and entropy of completions."""
    mean, longest, clipped, entropy = OF_TEXTS
    lengths = [read_curve(metrics, mean, "mean"), read_curve(metrics, longest, "longest")]
    cut_off = [read_curve(metrics, clipped, "cut off")]
    charts = [
        draw_chart("Completion length", lengths, note="in tokens", within=(0.0,)),
        draw_chart("Cut off by the length limit", cut_off, note="fraction of a step's completions", within=(0.0, 1.0)),
        draw_chart("Entropy", [read_curve(metrics, entropy, "entropy")], note="of a decision, in nats", within=(0.0,)),
    ]
    return [chart for chart in charts if chart]


def policy_charts(metrics: Log, warmup: Log) -> list[Chart]:
    """The charts of the optimization that have points."""
    charts = [draw_chart("Policy loss", [read_curve(metrics, "policy/loss", "loss")])]
    sides = {"low": "below the bound", "high": "above it"}
    clipped = [read_curve(metrics, f"policy/clip_{side}_frac", label) for side, label in sides.items()]
    charts.append(draw_chart("Fraction of ratios clipped", clipped, within=(0.0,)))
    ratio = read_curve(metrics, "policy/ratio_mean", "mean", spread="policy/ratio_std")
    charts.append(draw_chart("Probability ratio", [ratio], note="band: one standard deviation" if ratio.spread else ""))
    for key, title in TITLES.items():
        pick = (lambda values: values[0]) if key == "policy/on_policy_gap" else fmean
        if key != "policy/loss":
            charts.append(draw_chart(title, [read_curve(metrics, key, title, pick=pick)], note=NOTES.get(key, "")))
    charts.append(
        draw_chart("Warm-up loss", [read_curve(warmup, "loss", "loss")], note="before the first step, by warm-up step")
    )
    return [chart for chart in charts if chart]


def unrecorded_titles(metrics: Log, warmup: Log) -> list[str]:
    """Titles of the charts of the optimization without points."""
    titles = [title for key, title in TITLES.items() if not metrics.has(key)]
    return titles if warmup.has("loss") else [*titles, "Warm-up loss"]


def other_charts(metrics: Log) -> list[Chart]:
    """A chart for every logged number without another chart."""
    charted = re.compile(r"time/.*|reward/.+/(mean|std|weight|(failed|gated|clipped|cached)_frac)")
    keys = [key for key in metrics.numeric_keys() if key not in (*TITLES, *ELSEWHERE) and not charted.fullmatch(key)]
    return [chart for key in keys if (chart := draw_chart(key, [read_curve(metrics, key, key)]))]
