"""Two processes of which one fails or is stopped: the main one saves, and both resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmgrpo.runs.checkpoint import list_checkpoints

SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.training.trainer import Trainer
from tests.test_trainer import BASE, brightness, make_policy, weights

output, how, calls = Path(sys.argv[1]), sys.argv[2], []

def ends(rank):
    calls.append(rank)
    if len(calls) == 3 and os.environ["RANK"] == rank and how == "crashes":
        raise RuntimeError("device lost")
    if len(calls) == 3 and how == "is told":
        os.kill(os.getpid(), signal.SIGTERM)

def reward(samples):
    if how == "is told":
        ends("0")
    return brightness(samples)

policy = make_policy()
draw = policy.rollout

def rollout(*given, **named):
    if how == "crashes":
        ends("1")
    return draw(*given, **named)

policy.rollout = rollout
values = {**BASE, "rollout": {"prompts_per_step": 4, "group_size": 2}, "output": str(output)}
resume = output / "run" if (output / "run" / "config.yaml").is_file() else None
trainer = Trainer(policy, {"brightness": reward}, digit_prompts(), values, resume=resume)
trainer.train()
if trainer.job.is_main:
    torch.save(weights(trainer), output / f"{how}.pt")
"""


@pytest.mark.slow
def test_a_failure_of_one_of_two_processes_loses_no_complete_step(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def train(folder: str, how: str) -> int:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(script)]
        environment = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path.cwd()),
        }
        ended = subprocess.run(
            [*command, str(tmp_path / folder), how], env=environment, timeout=400, capture_output=True
        )
        return ended.returncode

    assert train("whole", "trains") == 0
    expected = torch.load(tmp_path / "whole" / "trains.pt")
    for how, status in (("crashes", "failed"), ("is told", "terminated")):
        assert (train(how, how) == 0) == (how == "is told")
        run = tmp_path / how / "run"
        assert json.loads((run / "run.json").read_text())["status"] == status
        assert [path.name for path in list_checkpoints(run)] == ["step-000002"]
        assert train(how, "trains") == 0
        assert torch.equal(torch.load(tmp_path / how / "trains.pt"), expected), how
