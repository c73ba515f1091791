"""Recipes of supervised stages train a tiny pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy

from mmgrpo.config.loading import load_config
from mmgrpo.training.trainer import Trainer
from tests.policies.test_supervised import picture
from tests.tiny.pipelines import PIPELINES


@pytest.mark.nightly
def test_self_correction_is_supervised_by_images_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": text, "picture": f"{text}.png"} for text in ("cat", "dog")]
    for number, row in enumerate(rows):
        picture(number, 16).save(row["picture"])
    Path("pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {
        "policy.dtype": "float32",
        "policy.call.height": 16,
        "policy.call.width": 16,
        "policy.call.max_sequence_length": 64,
        "update.warmup.steps": 2,
        "update.warmup.batch_size": 2,
        "runtime.device": "cpu",
        "evaluation": None,
        "output": str(tmp_path),
    }
    config = load_config("papers/soar", small).model_copy(update={"rewards": ()})
    assert config.policy is not None
    policy = DenoisingPolicy(PIPELINES["sd3"].build(), config.policy.settings)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(policy, {"nothing": lambda samples: [0.0] * len(samples)}, "pictures.jsonl", config).train()
    lines = [json.loads(line) for line in (folder / "warmup.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines] == [2e-5, 2e-5]
    assert all(0 < line["loss"] < 100 for line in lines)
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))
