"""The types of the tests; those of all else are checked at every commit, by ``.ci/run``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.nightly
def test_types_of_the_tests() -> None:
    environment = {"NODE_OPTIONS": "--max-old-space-size=8192", **os.environ}
    done = subprocess.run([sys.executable, "-m", "pyright", "tests"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout
