"""Whole runs of a vision-language policy: processes, batches and resuming change nothing but rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.types import Prompt, Sample
from tests.policies.tiny_language import picture, policy_of

TEXTS = ("what number is this", "how many red squares do you see", "what is on the left", "say one word")


def prompts() -> list[Prompt]:
    """Different lengths and images; the last has none."""
    return [Prompt(text, images=[picture(16 + 8 * k, 16, k)] * (k < 3)) for k, text in enumerate(TEXTS)]


def vowels(samples: list[Sample]) -> list[float]:
    return [sum((sample.text or "").count(letter) for letter in "aeiou") / 10 for sample in samples]


def trained(
    output: Path | str, *, settings: dict[str, Any] | None = None, resume: Path | None = None, **config: Any
) -> Trainer:
    """Two steps with a top-entropy mask, so that processes must agree on a quantile."""
    values: dict[str, Any] = {
        "output": str(output),
        "steps": 2,
        "rollout": {"prompts_per_step": 4, "group_size": 4},
        "objective": {
            "selections": [{"name": "top_entropy", "share": 0.5}],
            "aggregate": "token_mean",
            "kl": {"divergence": "k3", "beta": 0.05},
        },
        "update": {
            "minibatches": 2,
            "optimizer": {"lr": 1e-3, "eps": 1e-3},
            "ema": {"decay": 0.5},
        },  # AdamW blows up roundings
        "runtime": {"device": "cpu"},
        **config,
    }
    trainer = Trainer(policy_of("qwen2.5-vl", **(settings or {})), {"vowels": vowels}, prompts(), values, resume=resume)
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run with which others are compared."""
    return trained(tmp_path_factory.mktemp("uninterrupted"), checkpoint={"every": 1})


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings", [{"rollout_batch": 3, "update_tokens": 60, "head_bytes": 1}, {"share_prefix": False}], ids=str
)
def test_batches_do_not_change_the_run(settings: dict[str, Any], tmp_path: Path, uninterrupted: Trainer) -> None:
    other = trained(tmp_path, settings=settings)
    assert float((weights(uninterrupted) - weights(other)).abs().max()) < 2e-5
    untrained = torch.cat([parameter.flatten() for parameter in policy_of("qwen2.5-vl").trainable])
    assert float((weights(uninterrupted) - untrained).abs().max()) > 1e-4


@pytest.mark.nightly
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, uninterrupted: Trainer) -> None:
    resumed = trained(
        tmp_path, resume=uninterrupted.folder.path / "checkpoints" / "step-000001", checkpoint={"every": 1}
    )
    assert torch.equal(weights(resumed), weights(uninterrupted))
    steps = [
        json.loads(line)["step"] for line in (uninterrupted.folder.path / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [1, 1, 2, 2]
