"""Whole runs of policies that draw out of tokens: they learn, and take methods as they are."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import mmgrpo
from mmgrpo.config.loading import load_config
from mmgrpo.types import Prompt, Sample
from tests.policies.tiny_image_tokens import SETTINGS, policy_of
from tests.test_docs import page_names
from tests.tiny.image_tokens import NUM_CODES, make

PROMPTS = [Prompt("a red fox"), Prompt("two blue squares on the table")]
METHODS = ("cispo", "clip-cov", "dapo", "dr-grpo", "gmpo", "gpg", "gspo", "kl-cov", "rloo", "sapo")
"""Methods for tokens; some read entropies, some complete sequences."""


def low(samples: list[Sample]) -> list[float]:
    """Share of the codes that are of the lower half."""
    return [sum(code < NUM_CODES / 2 for code in sample.tokens or ()) / len(sample.tokens or ()) for sample in samples]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trained(folder: Path, name: str = "llamagen", **config: Any) -> list[dict[str, Any]]:
    policy = policy_of(name, guidance_scale=1.5, temperature=3.0)
    laid = {"steps": 2, "output": str(folder), "update": {"optimizer": {"lr": 3e-3}}, **config}
    laid["rollout"] = {"prompts_per_step": 2, "group_size": 8, **laid.get("rollout", {})}  # pyrefly: ignore[invalid-argument]
    return lines(mmgrpo.Trainer(policy, low, PROMPTS, laid).train())


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llamagen", pytest.param("janus", marks=pytest.mark.nightly)])
def test_a_run_increases_its_reward(name: str, tmp_path: Path) -> None:
    result = trained(tmp_path, name, steps=8)
    rewards = [line["reward/low/mean"] for line in result]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in result)


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_methods_for_tokens_train(method: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"include: [methods/{method}]\n")
    config = load_config(path, ["rollout.prompts_per_step=2", "rollout.group_size=4", "steps=2"])
    policy = policy_of("llamagen", guidance_scale=1.5)
    config = config.model_copy(update={"output": str(tmp_path)})
    result = lines(mmgrpo.Trainer(policy, low, PROMPTS, config).train())
    assert [line["step"] for line in result] == [1, 2]
    assert result[0]["optimizer/grad_norm"] > 0


def test_the_policy_of_the_page() -> None:
    model, tokenizer, autoencoder = make("llamagen")
    settings = SETTINGS["llamagen"]
    policy = page_names("how-to/image-tokens.md")["drawer_of"](copy.deepcopy(model), tokenizer, autoencoder)
    assert (policy.settings.begin, policy.settings.grid) == (settings["begin"], settings["grid"])
    rollout = policy.rollout(PROMPTS, group_size=1, seed=0)
    assert [sample.image.size for sample in rollout.samples if sample.image] == [(8, 6)] * 2
