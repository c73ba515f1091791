"""A policy of somebody else's package: found by its entry points, held to the laws, trained, shown."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmgrpo.config.loading import load_config
from mmgrpo.config.registry import decides, is_scheduled, names, resolve, settings_type
from mmgrpo.data.prompts import load_prompts_of
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError
from mmgrpo.testing import LAWS, Subject
from mmgrpo.train.build import build_policy, build_rewards
from mmgrpo.train.trainer import Trainer
from tests.own_package import PROJECT, put_on_path

SMALL = [
    "policy.chunks=2", "policy.denoising_steps=3", "policy.width=16", "warmup.steps=2", "warmup.batch_size=4",
    "warmup.examples.num=8", "rollout.prompts_per_step=4", "rollout.group_size=3", "steps=2",
    "evaluation.prompts.limit=3", "evaluation.every=1", "checkpoint.every=1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path_factory.mktemp("site"), monkeypatch)


def configured(*overrides: str, path: Path = PROJECT / "push.yaml") -> Any:
    return load_config(path, [*SMALL, *overrides])


def trainer(config: Any, **more: Any) -> Trainer:
    """Of a policy that is to move to the right, which is seen at once."""
    rewards = {"right": lambda samples: [float(sample.array[-1, 0]) for sample in samples]}
    return Trainer(build_policy(config, "cpu"), rewards, load_prompts_of(config.prompts), config, **more)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_it_keeps_the_laws(law: Callable[[Subject], None]) -> None:
    law(runpy.run_path(str(PROJECT / "tests" / "test_laws.py"))["SUBJECT"])


def test_names_and_settings_are_found_without_the_policy() -> None:
    assert names("policies")["action_chunks"] == "diffusion_policy.policy:ChunkPolicy"
    assert settings_type("action_chunks").__name__ == "ChunkSettings"
    assert (is_scheduled("action_chunks"), decides("action_chunks")) == (True, "denoising")
    assert "diffusion_policy.policy" not in sys.modules
    assert resolve("policies", "action_chunks").settings_type is settings_type("action_chunks")


def test_settings_are_typed() -> None:
    with pytest.raises(ConfigError, match=r"policy \(action_chunks\): unknown key 'chunk'; did you mean chunks"):
        build_policy(configured("policy.chunk=3"), "cpu")


def test_methods_for_others_are_refused() -> None:
    with pytest.raises(ConfigError, match="is for tokens, and the policy action_chunks is for denoising policies"):
        load_config(PROJECT / "push.yaml", laid_over=["methods/aepo"])


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = trainer(configured(f"output={tmp_path / 'whole'}"))
    whole.train()
    part = trainer(configured(f"output={tmp_path / 'part'}", "steps=1"))
    part.train()
    resumed = trainer(configured(f"output={tmp_path / 'part'}"), resume=part.folder.path)
    resumed.train()
    for mine, other in zip(whole.policy.trainable, resumed.policy.trainable, strict=True):
        assert torch.equal(mine, other)
    rows = [json.loads(line) for line in (whole.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["optimizer/grad_norm"] > 0 for row in rows)
    assert max(abs(row.get("policy/on_policy_gap", 0.0)) for row in rows) < 1e-5
    kept = whole.folder.path / "samples" / "step-000002"
    with Image.open(kept / "0000.png") as picture:
        assert picture.size == (128, 128)
    assert (kept / "0000.npy").exists()
    assert "data:image/png" in (whole.folder.path / "report.html").read_text()


def test_the_doctor_finds_it_sound() -> None:
    config = configured("objective.divergence=gaussian", "objective.kl_beta=0.1")
    policy = build_policy(config, "cpu")
    findings = examine(config, policy, build_rewards(config.rewards), load_prompts_of(config.prompts))
    assert [finding for finding in findings if not finding.ok and "reward" not in finding.check] == []
