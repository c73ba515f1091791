"""The loop of the examples does what the Trainer does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmgrpo.examples.loop import train

from mmgrpo import Trainer, build_policy, build_rewards, load_config, load_prompts_of
from mmgrpo.errors import ConfigError

SHORT = {
    "quickstart/arithmetic-text": ("warmup.steps=3", "rollout.prompts_per_step=4", "steps=2"),
    "quickstart/digits-image": (
        "warmup.steps=3",
        "rollout.prompts_per_step=4",
        "rollout.group_size=4",
        "steps=2",
        "policy.call.num_inference_steps=6",
    ),
}


@pytest.mark.parametrize("name", SHORT)
def test_the_loop_gives_the_trainers_updates_bitwise(name: str, tmp_path: Path) -> None:
    overrides = (*SHORT[name], "evaluation=null", f"output={tmp_path}")
    looped = train(name, overrides).trainable
    config = load_config(name, overrides)
    assert config.prompts is not None
    policy = build_policy(config, "cpu")
    before = [parameter.detach().clone() for parameter in policy.trainable]
    Trainer(policy, build_rewards(config.rewards), load_prompts_of(config.prompts), config).train()
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.trainable, strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(looped, policy.trainable, strict=True))


def test_it_fits_on_a_screen() -> None:
    source = (Path(__file__).parents[1] / "examples" / "loop.py").read_text()
    body = source[source.index("def train") : source.index("if __name__")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 40


def test_unsupported_features_of_the_loop_raise() -> None:
    with pytest.raises(ConfigError, match="the loop has no critic: train with mmgrpo train"):
        train("quickstart/arithmetic-text", ["critic={}"])
