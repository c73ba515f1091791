"""``mmgrpo.trl`` on two processes: training, evaluation and log history are those of one process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor

from mmgrpo.trl import GRPOConfig, GRPOTrainer
from tests.forked import on_processes
from tests.tiny.language_models import save

ROWS = Dataset.from_dict(
    {"prompt": ["what number is this", "how many red squares do you see"] * 2, "target": [3, 5] * 2}
)
NAMES = ("step", "loss", "reward", "rewards/odd/mean", "targets", "eval_rewards/odd/mean", "eval_targets", "train_loss")


def odd(completion_ids: list[list[int]], target: list[int], log_metric: Any, **columns: Any) -> list[float]:
    log_metric("targets", sum(target) / len(target))
    return [float(sum(ids) % 7 + number) for ids, number in zip(completion_ids, target, strict=True)]


def outcome(folder: Path, names: Sequence[str]) -> tuple[Tensor, dict[str, Any]]:
    """The trained weights, and the evaluation and the log history of every process."""
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    args = GRPOConfig(
        str(folder), per_device_train_batch_size=8 // num_processes, num_generations=2, max_steps=2, learning_rate=1e-2,
        adam_epsilon=1e-4, temperature=2.0, max_completion_length=12, logging_steps=1, eval_strategy="steps",
        eval_steps=1, save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = GRPOTrainer(str(folder.parent / "model"), odd, args, ROWS, eval_dataset=ROWS.select([0, 1, 2]))  # pyrefly: ignore[bad-argument-type]
    trainer.train()
    results = trainer.trainer.job.gather_processes((trainer.evaluate(), trainer.state.log_history))
    assert results[1:] == results[:-1]
    evaluation, history = results[0]
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    entries = [{name: entry[name] for name in names if name in entry} for entry in history]
    return weights, {"evaluation": evaluation, "history": entries}


@pytest.mark.nightly
def test_two_processes_train_and_report_as_one(tmp_path: Path) -> None:
    save("llama", tmp_path / "model")
    weights, results = on_processes(tmp_path, NAMES, module="tests.test_trl_on_processes", function="outcome")
    expected_weights, expected = outcome(tmp_path / "alone", NAMES)
    assert float((weights - expected_weights).norm() / expected_weights.norm()) < 1e-6
    assert results["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
    assert [entry["step"] for entry in results["history"]] == [0, 1, 1, 2, 2, 2]
    for entry, expected_entry in zip(results["history"], expected["history"], strict=True):
        assert entry == pytest.approx(expected_entry, rel=1e-5, abs=1e-6)
    assert results["history"][1]["targets"] == 4
