"""A few of the trials of ``python -m tests.fault_trials``, which does as many as are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EVERYDAY = ("--policies", "language", "--faults", "killed at an event of its files", "SIGTERM, SIGUSR1, SIGUSR2")
"""The texts, whose runs are the quicker ones; by night the images too, which Ctrl-C and a moment of their own end."""


@pytest.mark.parametrize(
    ("trials", "asked"), [(2, EVERYDAY), pytest.param(4, (), marks=pytest.mark.nightly)], ids=["day", "night"]
)
def test_disturbed_runs_equal_undisturbed_ones(trials: int, asked: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.fault_trials", "--trials", str(trials), "--seed", "2", "--in-turn", *asked]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{trials} trials, 0 of them wrong" in ended.stdout
