"""Seconds by phase, and the run's duration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.page import render


def test_time_by_phase(run: Path) -> None:
    page = render(run)
    cells = page.texts("td")
    start = cells.index("warm-up")
    # 149 s in all: warm-up 10 + 30; rollout 3 x 2 (not 6 x 2); reward 3 x 0.5; update 6 x 1; evaluation 3 x 4
    assert cells[start : start + 24] == [
        *("warm-up", "40 s", "26.8 %", "0.400 s per step"),
        *("rollout", "6.00 s", "4.0 %", "2.00 s per step"),
        *("reward", "1.50 s", "1.0 %", "0.500 s per step"),
        *("update", "6.00 s", "4.0 %", "2.00 s per step"),
        *("evaluation", "12 s", "8.1 %", "4.00 s per evaluation"),
        *("everything else", "1 min 24 s", "56.0 %", ""),
    ]
    assert "Model forwards per sample: 18.00" in page.texts("p", "sub")


@pytest.mark.parametrize(
    ("active_s", "taken", "rest"),
    [
        (105.5, "1 min 46 s", "40 s"),  # 105.5 - 65.5: the pause between two sessions is in no phase
        (None, "2 min 29 s", "1 min 24 s"),
        (float("nan"), "2 min 29 s", "1 min 24 s"),  # 149 - 65.5 = 83.5, rounded to even
        (True, "2 min 29 s", "1 min 24 s"),
    ],
)
def test_a_resumed_run_took_the_seconds_it_was_at_work(run: Path, active_s: object, taken: str, rest: str) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"active_s": active_s}))
    page = render(run)
    assert dict(zip(page.texts("dt"), page.texts("dd"), strict=True))["Duration"] == taken
    cells = page.texts("td")
    assert cells[cells.index("everything else") + 1] == rest


def test_an_interrupted_run_has_a_duration_if_it_kept_one(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"finished": None, "active_s": 90}))
    page = render(run)
    assert dict(zip(page.texts("dt"), page.texts("dd"), strict=True))["Duration"] == "1 min 30 s"
