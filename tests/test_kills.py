"""A few of the kills of ``python -m tests.kill_trials``, which does as many as are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_killed_runs_go_on_as_if_nobody_had_killed_them() -> None:
    command = [sys.executable, "-m", "tests.kill_trials", "--random", "1", "--points", "2", "--save", "none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 kills, 0 of them changed something" in ended.stdout
