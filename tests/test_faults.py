"""A few of the trials of ``python -m tests.fault_trials``, which runs any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import fault_trials
from tests.forked import on_processes

EVERYDAY = ("--policies", "language", "--faults", "killed at an event of its files")
"""Texts, whose runs are quicker; nightly images too, and signals, which ``test_resuming.py`` sends daily."""


def trial_faults(folder: Path, arguments: Sequence[str]) -> int:
    """How many trials went wrong."""
    return fault_trials.main(arguments)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("trials", "faults"), [(1, EVERYDAY), pytest.param(4, (), marks=pytest.mark.nightly)], ids=["day", "night"]
)
def test_disturbed_runs_equal_undisturbed_ones(trials: int, faults: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ["--trials", str(trials), "--seed", "2", "--in-turn", *faults]
    assert on_processes(tmp_path, arguments, module="tests.test_faults", function="trial_faults", processes=1) == 0
    assert f"{trials} trials, 0 of them wrong" in (tmp_path / "output.log").read_text()
