"""``mmgrpo train --accelerate``: the jobs that it starts, its errors, and the files of sharded runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from diffusers import SD3Transformer2DModel
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.cli.export import ExportRequest, export_run
from mmgrpo.cli.launch import launch
from mmgrpo.config.loading import LAUNCHES
from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.runs.checkpoint import list_checkpoints
from mmgrpo.shards import read_shards
from tests.test_sharding import needs_deepspeed


def test_unsupported_launches_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--accelerate nowhere: no such file; use fsdp2, gpus, zero2, zero3"):
        launch("nowhere", [], processes=None)
    (tmp_path / "mine.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"mine.yaml: .*create the file with accelerate config"):
        launch(str(tmp_path / "mine.yaml"), [], processes=None)
    (tmp_path / "mine.yaml").write_text("distributed_type: MULTI_CPU\nuse_cpu: true\n")
    pattern = r"needs mpirun for distributed_type MULTI_CPU and starts one process without it; set .*: MULTI_GPU"
    with pytest.raises(ConfigError, match=pattern):
        launch(str(tmp_path / "mine.yaml"), [], processes=2)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: started.append(command))
    for wrong, why in (
        (["quickstart/digits-image", "stepz=1"], "did you mean steps"),
        (["--resume", "no"], "neither a run f"),
    ):
        output = CliRunner().invoke(app, ["train", *wrong, "--accelerate", "gpus"])
        assert (output.exit_code, started) == (2, [])
        assert why in output.stderr
    output = CliRunner().invoke(app, ["train", "quickstart/digits-image", "--processes", "2"])
    assert output.exit_code == 2
    assert "--processes needs --accelerate" in " ".join(output.output.split())


def test_missing_deepspeed_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmgrpo.cli.launch.is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=r"--accelerate zero3 needs .*--extra deepspeed"):
        launch("zero3", [], processes=None)


def test_a_node_of_slurm_has_to_know_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match="2 Slurm nodes needs the address of the first node: export MASTER_ADDR"):
        launch("gpus", [], processes=None)


def _command_on_cpus(folder: Path, engine: str = "fsdp2") -> list[str]:
    """``mmgrpo train --accelerate ENGINE`` of a step, on two processes without GPUs."""
    (folder / "mine.yaml").write_text((LAUNCHES / f"{engine}.yaml").read_text() + "use_cpu: true\n")
    command = [sys.executable, "-m", "mmgrpo.cli", "train", "quickstart/digits-image", "steps=1", "update.warmup=null"]
    command += ["evaluation=null", "rollout.prompts_per_step=2", "rollout.group_size=2"]
    return [*command, "--accelerate", str(folder / "mine.yaml"), "--processes", "2"]


@pytest.mark.nightly
def test_two_nodes_of_slurm_are_one_run(tmp_path: Path) -> None:
    """What srun starts on each of two nodes, both of them this machine."""
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path.cwd()),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29713",
    }
    nodes = [
        subprocess.Popen(
            _command_on_cpus(tmp_path),
            cwd=tmp_path,
            env={**os.environ, **environment, "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "run.json").read_text())["machine"]["processes"] == 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("fsdp2", "FSDP2"),
        pytest.param("zero2", "DeepSpeed ZeRO-2", marks=needs_deepspeed),
        pytest.param("zero3", "DeepSpeed ZeRO-3", marks=needs_deepspeed),
    ],
)
def test_the_command_starts_its_processes(engine: str, name: str, tmp_path: Path) -> None:
    """As ``--accelerate`` does it, on the CPU."""
    command = _command_on_cpus(tmp_path, engine)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    (folder,) = (tmp_path / "runs").iterdir()
    output = json.loads((folder / "run.json").read_text())
    assert (output["status"], output["machine"]["processes"], output["machine"]["sharding"]) == ("finished", 2, name)
    assert output["command"].startswith("mmgrpo train ")
    assert output["command"].endswith(f" --accelerate {tmp_path / 'mine.yaml'} --processes 2")
    stored = read_shards(folder / "checkpoints" / "step-000001" / "policy" / "transformer")
    exported = export_run(str(folder), ExportRequest(to=tmp_path / "exported"))
    loaded = SD3Transformer2DModel.from_pretrained(exported / "transformer").state_dict()
    assert loaded.keys() == stored.keys()
    assert all(torch.equal(loaded[key], stored[key].full_tensor()) for key in loaded)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_ends_as_its_processes_do(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM is sent to the command itself, SIGKILL to the second of its processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    command = [*_command_on_cpus(tmp_path), "steps=200", "checkpoint.every=1", "about.name=ending"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE, text=True) as launched:
        folder = tmp_path / "runs" / "ending"
        while not list_checkpoints(folder):
            assert launched.poll() is None
            time.sleep(0.1)
        children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
        os.kill(launched.pid if number == signal.SIGTERM else int(children[-1]), number)
        output, complained = launched.communicate(timeout=100)
    assert launched.returncode == 128 + number
    how = f"mmgrpo train --resume {folder} --accelerate {tmp_path / 'mine.yaml'} --processes 2"
    assert f": {how}\n" in output
    assert "Traceback" not in complained
    status = json.loads((folder / "run.json").read_text())["status"]
    assert status == ("terminated" if number == signal.SIGTERM else "failed")
