"""Warnings about the rewards of the first step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmgrpo.config.loading import load_config
from mmgrpo.scoring import NamedReward
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests.policies.tiny_language import measured_policy_of, prompts_of


def by_member(samples: Sequence[Sample]) -> list[float | None]:
    return [float(sample.member) for sample in samples]


def to_nobody(samples: Sequence[Sample]) -> list[float | None]:
    return [None] * len(samples)


def test_a_reward_that_never_applies_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "update.minibatches": 1}
    config = load_config("methods/grpo", {**small, "rewards": [], "output": str(tmp_path), "policy": None})
    rewards = [NamedReward("by_member", by_member), NamedReward("to_nobody", to_nobody)]
    with caplog.at_level(logging.WARNING, logger="mmgrpo.training.score_rollouts"):
        Trainer(measured_policy_of("llama", max_new_tokens=4), rewards, prompts_of("llama")[:2], config).train()
    (message,) = (record.getMessage() for record in caplog.records if record.name == "mmgrpo.training.score_rollouts")
    assert message.startswith("reward to_nobody applied to none of the 4 samples of the first step: see that the rows")
