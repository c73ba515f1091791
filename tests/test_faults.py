"""A few of the trials of ``python -m tests.fault_trials``, which does as many as are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_disturbed_runs_end_as_if_nobody_had_disturbed_them() -> None:
    command = [sys.executable, "-m", "tests.fault_trials", "--trials", "4", "--seed", "2", "--in-turn"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 trials, 0 of them wrong" in ended.stdout
