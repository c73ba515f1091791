"""Curves, to scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.folder import write_lines
from tests.report.page import render


def test_curves_are_to_scale(run: Path) -> None:
    page = render(run)
    # both measures are in 0..1, so the axis is 0..1: y = 100 (1 - value); steps 0, 10, 20 at x = 0, 50, 100
    assert page.plot("Held-out measures") == ["M0.0 44.0L50.0 20.0L100.0 5.0", "M0.0 22.0L50.0 40.0L100.0 59.0"]
    band = next(attrs["d"] for tag, attrs, _ in page.elements if tag == "path" and attrs["class"] == "band")
    # means 0.25, 0.5, 0.75 +- 0.5: from -0.25 to 1.25, ticks every 0.5 from -0.5 to 1.5, so y = 100 (1.5 - v) / 2
    assert band == "M0.0 37.5L50.0 25.0L100.0 12.5L100.0 62.5L50.0 75.0L0.0 87.5Z"
    assert "1 value not finite, left out" in page.texts("p", "sub")


def test_constant_metrics_have_no_chart(run: Path) -> None:
    page = render(run)
    constants = page.texts("p", "settled")
    assert "Constant throughout: Entropy 0.300 (of a decision, in nats)" in constants
    # clipping 0 and 0.2, 0 and 0.1 in a step's two updates is 0.1 and 0.05 on average
    clipped = "Fraction of ratios clipped below the bound 0.100, above it 0.0500"
    gap = "rollout against recomputed log-prob"
    assert f"Constant throughout: Policy loss 0.500 {clipped} On-policy gap 1.00\u00d710⁻⁷ ({gap})" in constants
    assert "Constant throughout: samples/kept 1.000" in constants  # a number without a separate chart
    assert "Gradient norm" in page.texts("h3")  # 1 throughout, except one that was not finite
    titles = {"Policy loss", "Entropy", "On-policy gap", "samples/kept"} & set(page.texts("h3"))
    assert not titles


@pytest.mark.nightly
def test_no_curve_is_repeated(run: Path) -> None:
    page = render(run)
    assert [title for title in page.texts("h3") if title in ("Reward", "judge")] == ["Reward"]
    caption = "judge: the curve of Reward; failed on up to 12.5% of a step's samples."
    assert caption in page.texts("p", "settled")
    rows = [{"step": s, "reward/mean": 0.25 * s, "reward/judge/mean": 0.5 * s} for s in (1, 2, 3)]
    write_lines(run / "metrics.jsonl", rows)
    assert [title for title in render(run).texts("h3") if title in ("Reward", "judge")] == ["Reward", "judge"]


def test_the_band_of_verdicts_stays_among_them(run: Path) -> None:
    # of numbers that are 0 or 1, a mean of 0.8 has a spread of 0.4 and one of 0.5 has 0.5
    rows = [{"step": s, "reward/mean": m, "reward/std": d} for s, m, d in ((1, 0.5, 0.5), (2, 0.8, 0.4), (3, 1.0, 0.0))]
    write_lines(run / "metrics.jsonl", rows)
    bands = [attrs["d"] for attrs in render(run).attributes("path") if attrs["class"] == "band"]
    # axis 0..1: up to 1 from 0, 0.8 + 0.4 held at 1; down to 0.8 - 0.4 = 0.4
    assert bands == ["M0.0 0.0L50.0 0.0L100.0 0.0L100.0 0.0L50.0 60.0L0.0 100.0Z"]


def test_spikes_survive_thinning(run: Path) -> None:
    rows = [{"step": s, "optimizer/grad_norm": 90.0 if s == 3333 else 1.0} for s in range(5000)]
    write_lines(run / "metrics.jsonl", rows)
    plots = [json.loads(attrs["data-readout"]) for attrs in render(run).attributes("div") if "data-readout" in attrs]
    points = next(plot["curves"][0][1] for plot in plots if plot["curves"][0][0] == "Gradient norm")
    assert len(points) <= 500
    assert (points[0], points[-1]) == ([0, 1.0], [4999, 1.0])
    assert [3333, 90.0] in points


def test_completions(run: Path) -> None:
    # lengths 10, 20, 40 of at most 50 tokens; two updates of a step repeat its numbers
    rows = [
        {
            "step": step,
            "completions/mean_length": length,
            "completions/max_length": 50,
            "completions/clipped_frac": cut,
        }
        for step, length, cut in ((1, 10, 0.5), (2, 20, 0.25), (3, 40, 0.0))
        for _ in range(2)
    ]
    write_lines(run / "metrics.jsonl", rows)
    page = render(run)
    # axis 0..60 in twenties: y = 100 (1 - value / 60)
    assert page.plot("Completion length") == ["M0.0 83.33L50.0 66.67L100.0 33.33", "M0.0 16.67L50.0 16.67L100.0 16.67"]
    assert page.plot("Cut off by the length limit") == ["M0.0 50.0L50.0 75.0L100.0 100.0"]
    assert "completions/mean_length" not in page.texts("h3")
