"""Runs with tools and objects on two processes: training and evaluation are those of one process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.types import Prompt
from tests.forked import on_processes
from tests.tiny.counting import TargetEnv, TwoEnv, examples_of, question
from tests.tiny.tool_callers import ask, caller

ASK = ask(question(2))
OBJECTS = {"count": TwoEnv, "target": TargetEnv}
ROWS = [{"prompt": ASK, "environment": name, "target": target} for name, target in zip(OBJECTS, (2, 3), strict=True)]


def distance(environments: list[Any], completions: list[Any], **kwargs: Any) -> list[float]:
    """How far an object's counter is from its target, and the number of messages; fails without the objects."""
    pairs = zip(environments, completions, strict=True)
    return [float(abs(each.counter - each.target)) + len(messages) / 8 for each, messages in pairs]


def evaluated() -> list[Prompt]:
    columns = [{name: row[name] for name in ("environment", "target")} for row in ROWS]
    return [Prompt("", messages=ASK, columns=each) for each in columns]


def run(folder: Path) -> Trainer:
    """Two steps on conversations that differ in their number of turns, each after an evaluation."""
    policy = caller("qwen3", examples_of([2]), max_new_tokens=200, temperature=1.2, rollout_batch=1)
    values = {
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 4, "max_turns": 3},
        "update": {"optimizer": {"lr": 1e-4}},
        "evaluation": {
            "prompts": {"source": "python:tests.test_tools_on_processes:evaluated"},
            "every": 1,
            "samples_per_prompt": 2,
        },
        "output": str(folder),
    }
    trainer = Trainer(policy, distance, ROWS * 2, values, environment_factory=OBJECTS)
    trainer.train()
    return trainer


def outcome(folder: Path, names: Sequence[str]) -> tuple[Tensor, dict[str, list[dict[str, Any]]]]:
    """The trained weights, and the lines of the logs by file."""
    trainer = run(folder)
    trainer.job.barrier()
    lines = {
        name: [json.loads(line) for line in (trainer.folder.path / name).read_text().splitlines()] for name in names
    }
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters]), lines


@pytest.mark.nightly
def test_rewards_that_read_environments_score_training_and_evaluation_as_in_one_process(tmp_path: Path) -> None:
    names = ["metrics.jsonl", "evaluation.jsonl"]
    weights, lines = on_processes(tmp_path, names, module="tests.test_tools_on_processes", function="outcome")
    expected_weights, expected_lines = outcome(tmp_path / "alone", names)
    assert float((weights - expected_weights).norm() / expected_weights.norm()) < 1e-6
    assert expected_lines["metrics.jsonl"][0]["optimizer/grad_norm"] > 0
    for name in names:
        for line, expected in zip(lines[name], expected_lines[name], strict=True):
            keys = {key for key in expected if key.startswith(("reward/", "eval/", "tools/", "environment/"))}
            keys = {key for key in keys if not key.endswith(("seconds", "_s"))}
            assert any(f"/{kind}/" in key for key in keys for kind in ("TwoEnv", "TargetEnv", "distance"))
            assert {key: line[key] for key in keys} == pytest.approx({key: expected[key] for key in keys}, rel=1e-5)
    assert {"reward/TwoEnv/mean", "reward/TargetEnv/mean"} <= expected_lines["metrics.jsonl"][0].keys()
    assert {"eval/distance/mean", "eval/TargetEnv/mean"} <= expected_lines["evaluation.jsonl"][0].keys()
