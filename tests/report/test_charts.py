"""Curves, to scale."""

from __future__ import annotations

import json
from pathlib import Path

from tests.report.folder import write_lines
from tests.report.page import render


def test_curves_are_drawn_to_scale(run: Path) -> None:
    page = render(run)
    # both measures lie in 0..1, so the axis is 0..1: y = 100 (1 - value); steps 0, 10, 20 at x = 0, 50, 100
    assert page.plot("Held-out measures") == ["M0.0 44.0L50.0 20.0L100.0 5.0", "M0.0 22.0L50.0 40.0L100.0 59.0"]
    # clipping 0 and 0.2 in a step's two updates is 0.1 on average; axis 0..0.1
    assert page.plot("Fraction of ratios clipped") == ["M0.0 0.0L50.0 0.0L100.0 0.0", "M0.0 50.0L50.0 50.0L100.0 50.0"]
    band = next(attrs["d"] for tag, attrs, _ in page.elements if tag == "path" and attrs["class"] == "band")
    # means 0.25, 0.5, 0.75 +- 0.5: from -0.25 to 1.25, ticks every 0.5 from -0.5 to 1.5, so y = 100 (1.5 - v) / 2
    assert band == "M0.0 37.5L50.0 25.0L100.0 12.5L100.0 62.5L50.0 75.0L0.0 87.5Z"
    assert "failed on up to 12.5% of a step's samples" in page.texts("p", "sub")
    assert "1 value not finite, left out" in page.texts("p", "sub")
    assert page.plot("Entropy") == ["M0.0 0.0L50.0 0.0L100.0 0.0"]  # 0.3 in every update, on an axis of 0..0.3
    assert "samples/kept" in page.texts("h3")  # a number that no chart of its own holds


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
