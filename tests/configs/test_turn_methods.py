"""Every method of ``configs/methods/environments`` trains a tiny language model on conversations.

The methods and the rewards that they read are taken from their files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.training.trainer import Trainer
from tests.configs.mechanisms import TURNS
from tests.configs.turn_runs import turn_run
from tests.policies.families import daily

SMALL: Mapping[str, Any] = {
    "steps": 2,
    "update.minibatches": 2,
    "update.optimizer.lr": 1e-3,
    "runtime.device": "cpu",
    "rewards": [],
}
EVERYDAY = ("spa-rl", "gigpo", "tree-grpo", "ssp")


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", daily(TURNS, *EVERYDAY))
def test_method_trains_on_conversations(name: str, tmp_path: Path) -> None:
    run = turn_run(name)
    config = load_config(f"methods/{name}", {**SMALL, **run.changes, "output": str(tmp_path)})
    policy = run.policy(config)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(policy, run.rewards, run.prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == {1, 2}
    gaps = [line["policy/on_policy_gap"] for line in lines if "policy/on_policy_gap" in line]
    assert gaps  # a step whose rows all have the advantage 0 measures none
    assert max(gaps) < 1e-5
    for line in lines:
        assert line["optimizer/grad_norm"] < float("inf")
        assert (line.get("rollout/rounds", 1) > 1) == Algorithm.of(config).strategy.looks_back
    assert any(line["optimizer/grad_norm"] > 0 for line in lines)
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))
