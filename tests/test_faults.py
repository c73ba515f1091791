"""A few of the trials of ``python -m tests.fault_trials``, which does as many as are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EVERYDAY = ("--policies", "language", "--faults", "killed at an event of its files")
"""Texts, whose runs are quicker; nightly images too, and signals, which ``test_resuming.py`` sends daily."""


@pytest.mark.parametrize(
    ("trials", "asked"), [(1, EVERYDAY), pytest.param(4, (), marks=pytest.mark.nightly)], ids=["day", "night"]
)
def test_disturbed_runs_equal_undisturbed_ones(trials: int, asked: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.fault_trials", "--trials", str(trials), "--seed", "2", "--in-turn", *asked]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{trials} trials, 0 of them wrong" in ended.stdout
