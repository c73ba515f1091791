"""Two processes of which one is lost: the other ends within a minute, with the cause in its output and in the run's."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo import Trainer
from tests.faults.disturbed import on_forward
from tests.faults.runs import CASES
from tests.faults.sittings import begin_both, ended, placed
from tests.forked import on_processes

FORWARD = 70
"""Of a rollout or an update; an error in a forward of the checks before them only rejects the path that is checked."""


def lose_process(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """A run on two processes of which one is lost in a forward pass; its name is how, and its rank."""
    how, rank = names[0].split()
    case, victim, root = CASES["language"], int(rank), folder / names[0].replace(" ", "-")

    def within(trainer: Trainer) -> None:
        group = torch.distributed.distributed_c10d._get_default_group()
        seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        (root / "timeout").write_text(str(seconds))

        def fall() -> None:
            (root / "fell").write_text(str(time.time()))
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("lost")

        if trainer.job.rank == victim:
            on_forward(case, trainer, FORWARD, fall)

    place = placed(root)
    pids = begin_both(case, place, within=within)
    other = ended(pids[1 - victim], place, log=f"output-{1 - victim}.log")
    duration_s = time.time() - float((root / "fell").read_text())
    lost = ended(pids[victim], place, log=f"output-{victim}.log")
    about = json.loads((place.run / "run.json").read_text())
    return {
        "code": other.code,
        "output": other.output,
        "duration_s": duration_s,
        "victim": lost.code,
        "of": victim,
        "pid": pids[victim],
        "timeout_s": float((root / "timeout").read_text()),
        "status": about["status"],
        "error": about["error"],
    }


EVERYDAY = "killed 0"
"""The first process is lost, which writes the run's files; nightly each of the two, in each way."""


def by(*ways: str) -> pytest.MarkDecorator:
    """How one is lost, and which."""
    marks = {way: () if way == EVERYDAY else pytest.mark.nightly for way in ways}
    return pytest.mark.parametrize("run_end", [pytest.param(way, marks=marks[way]) for way in ways], indirect=True)


@pytest.fixture(scope="module")
def run_end(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("peers")
    return on_processes(folder, [request.param], module="tests.test_peers", function="lose_process", processes=1)


@pytest.mark.nightly
@by("killed 0", "killed 1")
def test_one_that_is_killed_is_missed(run_end: dict[str, Any]) -> None:
    result, victim = run_end, run_end["of"]
    cause = f"process {victim} of 2 (pid {result['pid']} on "
    assert (result["code"], result["victim"]) == (2, -9)
    assert result["duration_s"] < 60
    assert cause in result["output"]
    assert result["status"] == "failed"
    assert result["error"].startswith(f"ProcessLostError: {cause}")
    assert "is gone: it was killed or crashed" in result["error"]


@by("failing 0", "failing 1")
def test_a_failure_of_one_process_is_raised_by_all(run_end: dict[str, Any]) -> None:
    result, victim = run_end, run_end["of"]
    assert (result["code"], result["victim"]) == (2, 1)
    assert result["duration_s"] < 60
    assert f"process {victim} of 2 failed: KeyError: 'lost'" in result["output"]
    assert result["status"] == "failed"
    # the main process writes its own error down; where another failed, the error of that one
    message = "KeyError: 'lost'" if victim == 0 else "ProcessLostError: process 1 of 2 failed: KeyError: 'lost'"
    assert result["error"].startswith(message)


@pytest.mark.nightly
@by("killed 0")
def test_the_time_that_one_waits_for_another_is_the_settings(run_end: dict[str, Any]) -> None:
    assert run_end["timeout_s"] == 3600.0
