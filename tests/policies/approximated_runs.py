"""Tests that every approximation of untrained steps passes: caches and quantized weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmgrpo.policies.diffusion.policy import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan
from tests.policies.contract import sample_difference, values
from tests.policies.tiny_policies import prompts_of

SEED = 3


def run_config(policy: DenoisingPolicy, output: Path) -> RunConfig:
    """Two steps of training on a window of two of the policy's steps."""
    return validated(
        {
            "output": str(output),
            "steps": 2,
            "policy": {"name": "denoising", **policy.settings.model_dump(exclude_unset=True)},
            "rollout": {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 2, "size": 2}},
            "update": {"optimizer": {"lr": 0.01}},
        }
    )


def train_on_exact_steps(policy: DenoisingPolicy, config: RunConfig) -> list[dict[str, Any]]:
    """The metrics of a run, whose trained steps are exact."""
    run = Trainer(policy, {"brightness": Brightness()}, ["a red fox", "a blue square"], config).train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["policy/on_policy_gap"] for line in lines] == [0, 0]
    assert all(line["optimizer/grad_norm"] > 0 for line in lines)
    return lines


def require_separate_calls(policies: Sequence[DenoisingPolicy], num_steps: int) -> None:
    """Guided, Wan calls its transformer twice a step; no call uses what another one or the first step stored.

    Of the policies with a cache and without one, no step of the first rollout can use what a step before it stored: the
    first and the last alone are untrained.
    """
    plan = Plan(stochastic=tuple(range(1, num_steps - 1)))
    rollouts = [each.rollout(prompts_of("wan"), group_size=1, seed=SEED, plan=plan) for each in policies]
    assert sample_difference(rollouts[0].samples, rollouts[1].samples) == 0
    assert rollouts[0].num_forwards == rollouts[1].num_forwards == 2 * num_steps * len(rollouts[1].samples)
    rollout = policies[0].rollout(prompts_of("wan"), group_size=1, seed=SEED, plan=Plan(stochastic=(2,)))
    assert rollout.num_forwards < rollouts[0].num_forwards
    assert torch.equal(values(policies[1], rollout), rollout.old_logprob_BT)
