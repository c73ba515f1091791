"""Processes that a launcher started together are one job, or end with an error: never a run each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmgrpo.config import RunConfig
from mmgrpo.distributed.accelerator import make_accelerator
from mmgrpo.errors import ConfigError
from mmgrpo.system.launch_environment import WORLD_SIZES, num_launched
from tests.forked import on_processes
from tests.test_trainer import run

NO_CPU_REQUESTED = {"ACCELERATE_USE_CPU": "false"}


def single_step(folder: Path, names: Sequence[str]) -> tuple[list[str], int]:
    trainer = run(folder, steps=1, checkpoint={"every": None})
    return sorted(path.name for path in folder.iterdir()), trainer.job.num_processes


def test_two_processes_without_a_gpu_are_one_run(tmp_path: Path) -> None:
    folders, num_processes = on_processes(
        tmp_path, [], module="tests.test_launched_jobs", function="single_step", environment=NO_CPU_REQUESTED
    )
    assert (len(folders), num_processes) == (1, 2)


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"])
def test_processes_that_cannot_be_connected_are_an_error(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in (*WORLD_SIZES, "SLURM_STEP_NUM_TASKS", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert num_launched() == 1
    monkeypatch.setenv(variable, "2")
    assert num_launched() == 2
    config = RunConfig.model_validate({"runtime": {"device": "cuda"}})  # which accelerate connects by LOCAL_RANK alone
    with pytest.raises(
        ConfigError, match=rf"\({variable}=2\) started 2 processes, and accelerate connects 1.*WORLD_SIZE=1"
    ):
        make_accelerator(config)


def test_tasks_of_srun_that_are_separate_runs_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert num_launched() == 1
