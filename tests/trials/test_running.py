"""Running comparisons: shared work changes nothing, and an interrupted comparison resumes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.runs.folder import has_ended, run_status
from mmgrpo.training.build import build_policy, build_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.trials.run_trials import ComparisonRunner
from mmgrpo.trials.trial_plan import plan_comparison, write_configurations

TEXT = "quickstart/arithmetic-text"
SHORT = ("steps=2", "update.warmup.steps=3", "evaluation.every=2", "rollout.prompts_per_step=4", "rollout.group_size=4")


def trained(config: RunConfig) -> list[torch.Tensor]:
    policy = build_policy(config, "cpu")
    assert config.prompts is not None
    Trainer(policy, build_rewards(config.rewards), load_prompts_of(config.prompts), config).train()
    return [parameter.detach().clone() for parameter in policy.trainable]


@pytest.mark.nightly
def test_a_run_after_the_shared_warm_up_is_the_run_with_its_own(tmp_path: Path) -> None:
    result = plan_comparison(["grpo"], TEXT, num_seeds=1, overrides=SHORT, root=tmp_path)
    trained(result.warmups[0].config)
    shared = trained(result.trials[0].config)
    alone = trained(load_config(TEXT, [*SHORT, f"output={tmp_path}"], methods=["methods/grpo"]))
    assert all(map(torch.equal, shared, alone))
    assert run_status(result.trials[0].folder) == "finished"


@pytest.mark.nightly
def test_interrupted_runs_resume(tmp_path: Path) -> None:
    """Told to end within its third run, then given again: the same numbers as without."""
    command = [sys.executable, "-m", "mmgrpo", "compare", "grpo", "gspo", *SHORT, "steps=40", "--on", TEXT]
    command += ["--seeds", "1", "--out"]
    cut, uninterrupted = tmp_path / "cut", tmp_path / "whole"
    process = subprocess.Popen([*command, str(cut)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (cut / "runs/grpo-0/metrics.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143
    assert output.decode().splitlines()[-1].startswith("interrupted: running runs save a checkpoint")
    assert not (cut / "runs/gspo-0").exists()
    for folder in (cut, uninterrupted):
        assert subprocess.run([*command, str(folder)], check=False, timeout=300).returncode == 0
    result = [json.loads((folder / "comparison.json").read_text()) for folder in (cut, uninterrupted)]
    for method in ("grpo", "gspo"):
        keys = ("held_out_accuracy", "reward", "forwards")
        assert [result[0][method][key] for key in keys] == [result[1][method][key] for key in keys]


@pytest.mark.nightly
def test_a_failed_run_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("rewards: [{name: 'python:math:sqrt'}]\n")
    result = plan_comparison(["grpo", str(broken)], TEXT, num_seeds=1, overrides=SHORT, root=tmp_path / "c")
    write_configurations(result)
    lines: list[str] = []
    failed = ComparisonRunner(num_jobs=2, print_line=lines.append).carry_out(result)
    assert [trial.name for trial in failed] == ["broken-0"]
    assert has_ended(result.trials[0].folder)
    assert [
        line for line in lines if line.startswith("broken-0 ") and ": failed: " in line and str(failed[0].log) in line
    ]
    assert "sqrt" in failed[0].log.read_text()
