"""The curves of two conflicting rewards."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.conflict import Curves, curves_of


def ends(curves: Curves, key: str) -> tuple[float, float]:
    """Means of the first and of the last five steps."""
    values = curves[f"reward/{key}"]
    return fmean(values[:5]), fmean(values[-5:])


@pytest.mark.nightly
def test_the_sum_serves_the_larger_reward_and_gdpo_both(tmp_path: Path) -> None:
    raw, gdpo = (curves_of(name, tmp_path) for name in ("sum", "gdpo"))
    assert ends(raw, "many/mean")[1] > 4.5  # all four letters, the contested one among them
    assert ends(raw, "last/mean")[1] < 0.05
    assert 3.4 < ends(gdpo, "many/mean")[1] < 4.2  # three of four
    assert ends(gdpo, "last/mean")[1] > 0.8


@pytest.mark.nightly
def test_a_gate_makes_the_easy_reward_wait_for_the_other(tmp_path: Path) -> None:
    raw, gated = (curves_of(name, tmp_path) for name in ("sum, easy", "gated"))
    assert ends(raw, "easy/mean")[1] > 2.7
    assert ends(raw, "right/mean")[1] < 0.1
    assert ends(gated, "right/mean")[1] > 0.9
    assert ends(gated, "easy/mean")[1] > 1.2  # 1.5 is the rest after the other
    shut, opened = ends(gated, "easy/gated_frac")
    assert shut > 0.9
    assert opened < 0.2
    reached = [next(i for i, value in enumerate(gated[f"reward/{key}/mean"]) if value > half)
               for key, half in (("right", 0.5), ("easy", 0.75))]  # fmt: skip
    assert reached[0] < reached[1]
