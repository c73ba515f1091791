"""The methods of masked policies, from their files to an update: each over a tiny model, two steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mmgrpo import Trainer, build_policy, build_rewards, load_config, load_prompts_of
from mmgrpo.config.loading import read_layers, shipped
from mmgrpo.errors import ConfigError
from tests.configs.mechanisms import applies_to

MASKED = [name for name in shipped("methods") if applies_to(name) == "masked"]
TINY = {
    "policy": {"name": "masked", "model": "python:tests.tiny.masked_models:eurobert", "length": 6, "num_steps": 3},
    "prompts": {"source": "python:tests.policies.tiny_masked:prompts_of"},
    "rewards": [{"name": "python:tests.configs.test_masked_methods:long"}],
    "rollout": {"prompts_per_step": 2, "group_size": 3},
    "update": {"epochs": 2, "optimizer": {"lr": 1.0e-3}},
    "steps": 2,
}


def long(samples: list) -> list[float]:
    """Longer texts are better."""
    return [float(len(sample.text)) for sample in samples]


@pytest.mark.first_case
@pytest.mark.parametrize("name", MASKED)
def test_a_method_of_masked_policies_trains(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"include": [name], **TINY, "output": str(tmp_path)}))
    config = load_config(path, ["policy.reading.num_levels=2"])
    assert config.prompts is not None
    run = Trainer(build_policy(config, "cpu"), build_rewards(config.rewards), load_prompts_of(config.prompts), config)
    run.train()
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(lines) == 4
    assert lines[0]["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert lines[0]["policy/on_policy_gap"] <= 1e-6
    assert lines[0]["optimizer/grad_norm"] > 0
    assert lines[1]["policy/ratio_std"] > 0


def test_they_are_for_masked_policies_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"include": ["quickstart/arithmetic-text", "methods/maskgrpo"]}))
    with pytest.raises(ConfigError, match="maskgrpo is for masked policies, and the policy language is for tokens"):
        load_config(path)
    path.write_text(yaml.safe_dump({"include": ["quickstart/digits-masked", "methods/flow-grpo"]}))
    with pytest.raises(ConfigError, match="flow-grpo is for denoising policies, and the policy masked is for masked"):
        load_config(path)
    path.write_text(yaml.safe_dump({"include": ["methods/luffy", "methods/maskgrpo"]}))
    assert read_layers(path)["about"]["method"]["name"] == "maskgrpo"
