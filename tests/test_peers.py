"""Two processes of which one is lost: the other ends within a minute, with the cause in its output and in the run's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from tests.faults.disturbed import on_forward
from tests.faults.runs import CASES
from tests.faults.sittings import begin_both, ended, placed

case, found = CASES["language"], {}
torch.set_num_threads(1)
for one in sys.argv[2:]:
    how, victim = one.split()[0], int(one.split()[1])
    def within(trainer):
        group = torch.distributed.distributed_c10d._get_default_group()
        seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        (place.root / "timeout").write_text(str(seconds))
        def fall():
            (place.root / "fell").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else {}["lost"]
        if trainer.job.rank == victim:
            on_forward(case, trainer, 60, fall)
    place = placed(Path(sys.argv[1]) / f"{how}-{victim}")
    pids = begin_both(case, place, within=within)
    other = ended(pids[1 - victim], place, log=f"said-{1 - victim}.log")
    took_s = time.time() - float((place.root / "fell").read_text())
    left = ended(pids[victim], place, log=f"said-{victim}.log")
    about = json.loads((place.run / "run.json").read_text())
    found[one] = {
        "code": other.code, "said": other.said, "took_s": took_s, "victim": left.code, "of": victim,
        "pid": pids[victim], "timeout_s": float((place.root / "timeout").read_text()),
        "status": about["status"], "error": about["error"],
        "checkpoints": sorted(path.name for path in (place.run / "checkpoints").iterdir()),
    }
print(json.dumps(found))
"""


EVERYDAY = "killed 0"
"""The first process is lost, which writes the run down; by night each of the two, in each way."""


def by(*ways: str) -> pytest.MarkDecorator:
    """How one is lost, and which."""
    marks = {way: () if way == EVERYDAY else pytest.mark.nightly for way in ways}
    return pytest.mark.parametrize("found", [pytest.param(way, marks=marks[way]) for way in ways], indirect=True)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("peers")), request.param]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])[request.param]


@by("killed 0", "killed 1")
def test_one_that_is_killed_is_missed(found: dict[str, Any]) -> None:
    one, victim = found, found["of"]
    cause = f"process {victim} of 2 (pid {one['pid']} on "
    assert (one["code"], one["victim"]) == (2, -9)
    assert one["took_s"] < 60
    assert cause in one["said"]
    assert one["status"] == "failed"
    assert one["error"].startswith(f"ProcessLostError: {cause}")
    assert "is gone: it was killed or crashed" in one["error"]


@by("failing 0", "failing 1")
def test_a_failure_of_one_process_is_raised_by_all(found: dict[str, Any]) -> None:
    one, victim = found, found["of"]
    assert (one["code"], one["victim"]) == (2, 1)
    assert one["took_s"] < 60
    assert f"process {victim} of 2 failed: KeyError: 'lost'" in one["said"]
    assert one["status"] == "failed"
    # the main process writes its own error down; where another failed, what that one said
    said = "KeyError: 'lost'" if victim == 0 else "ProcessLostError: process 1 of 2 failed: KeyError: 'lost'"
    assert one["error"].startswith(said)


@by("killed 0")
def test_the_time_that_one_waits_for_another_is_the_settings(found: dict[str, Any]) -> None:
    assert found["timeout_s"] == 3600.0
