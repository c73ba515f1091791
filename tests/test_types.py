"""The types of the tests; those of all else are checked at every commit, by ``.ci/run``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_types_of_the_tests() -> None:
    links = ROOT / ".types/mmgrpo"  # as .ci/run makes them: pyright resolves mmgrpo.policies there
    shutil.rmtree(links.parent, ignore_errors=True)
    links.mkdir(parents=True)
    for target in ("mmgrpo/__init__.py", "policies", "rewards", "examples"):
        (links / Path(target).name).symlink_to(ROOT / target)
    environment = {"NODE_OPTIONS": "--max-old-space-size=8192", **os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "tests"], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout
