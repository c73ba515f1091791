"""Trees in the step: credit by node of a sampled rollout, the savings of pruning, and BranchGRPO's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.policies.diffusion import DenoisingPolicy

import mmgrpo
from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.explain.forward_counts import forwards_per_sample
from mmgrpo.memory import Memory
from mmgrpo.scoring import named_rewards
from mmgrpo.training.build import plan_at
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from tests.tiny.pipelines import PIPELINES

SMALL: dict[str, Any] = {
    "rollout.prompts_per_step": 1,
    "rollout.group_size": 4,
    "policy.call.num_inference_steps": 4,
    "policy.call.height": 16,
    "policy.call.width": 16,
    "policy.call.max_sequence_length": 64,
    "policy.call.guidance_scale": 1.0,
    "policy.dtype": "float32",
    "runtime.device": "cpu",
}


def first_leaf(samples: Sequence[Sample]) -> list[float]:
    """1, 0, 0, 0."""
    return [float(sample.member == 0) for sample in samples]


def config_of(tmp_path: Path, **changes: Any) -> RunConfig:
    path = tmp_path / "run.yaml"
    path.write_text("include: [models/sd3.5-medium, methods/branch-grpo]\n")
    return load_config(path, SMALL | {"output": str(tmp_path)} | changes)


def policy_of(config: RunConfig) -> DenoisingPolicy:
    assert config.policy is not None
    return DenoisingPolicy(PIPELINES["sd3"].build(), config.policy.settings)


def batch_of(config: RunConfig, policy: DenoisingPolicy) -> Advantages:
    """One step, as far as credit."""
    job, rewards = mmgrpo.Job(Accelerator(cpu=True)), named_rewards({"first": first_leaf})
    experience = mmgrpo.collect_rollouts(
        policy,
        Algorithm.of(config).strategy,
        lambda place: Prompt("a red fox"),
        mmgrpo.Scorer(rewards),
        setting=Algorithm.of(config).step_setting(0, Memory(), str),
        plan=plan_at(Algorithm.of(config), policy, 0),
        job=job,
        value=partial(mmgrpo.combine_rewards, reward_functions=rewards, chain=Algorithm.of(config).advantages, step=0),
    )
    verdict = mmgrpo.score_rollouts(experience, rewards, step=0, job=job)
    return mmgrpo.compute_advantages(policy, experience, verdict, Algorithm.of(config), step=0, job=job)


def test_nodes_of_a_sampled_tree_are_credited_by_depth(tmp_path: Path) -> None:
    config = config_of(tmp_path, **{"advantage.estimators": [{"name": "by_depth"}], "about.method": None})
    batch = batch_of(config, policy_of(config))
    # evenly: splits at 0 and 2. Nodes after decisions 0 and 1: means 1/2 and 0, so (0.25, -0.25) / 0.353553. After
    # decision 2 the leaves 1, 0, 0, 0: mean 0.25, sample std 0.5. The last step is not sampled.
    upper, lower = [0.707107, 0.707107], [-0.707107, -0.707107]
    expected = [[*upper, 1.5, 0.0], [*upper, -0.5, 0.0], [*lower, -0.5, 0.0], [*lower, -0.5, 0.0]]
    torch.testing.assert_close(batch.advantage_BT, torch.tensor(expected), rtol=0, atol=1e-5)
    assert batch.rollout.num_forwards == 1 + 2 + 2 + 4


def trained(config: RunConfig) -> list[dict[str, Any]]:
    trainer = Trainer(policy_of(config), {"first": first_leaf}, [Prompt("a red fox")], config)
    trainer.train()
    return [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "per_sample"),
    [
        # 9 states sampled and 5 trained on
        ({}, (9 + 5) / 4),
        # splits of 4 leaves of 6 steps, at 0, 3, of a window 2, 3: 1 + 3 * 2 + 2 * 4 sampled, 0, 2 and 3 trained on
        (
            {
                "policy.call.num_inference_steps": 6,
                "rollout.window": {"name": "fixed", "start": 2, "size": 2},
                "rollout.tree": {"name": "at", "at": [0, 3], "spread": 4.0},
            },
            (15 + 1 + 2 + 2) / 4,
        ),
    ],
)
def test_branch_grpo_trains_each_state_once(tmp_path: Path, changes: dict[str, Any], per_sample: float) -> None:
    config = config_of(tmp_path, **{"steps": 2, **changes})
    lines = trained(config)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
        assert line["count/forwards_per_sample"] == per_sample
    num_steps = changes.get("policy.call.num_inference_steps", 4)
    counted = forwards_per_sample(Algorithm.of(config), num_steps)
    assert counted.rollout is not None
    assert (counted.rollout + counted.update).at(num_steps) == pytest.approx(per_sample)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("pruning", "update"),
    [
        # depths 1 and 2: 1 + 2 states less of 5
        ({"name": "prune_depths", "depths": [1, 2]}, 2),
        # only the split itself is below the last split of 4 steps: all of it stays
        ({"name": "prune_width"}, 5),
    ],
)
def test_pruned_decisions_are_not_computed(tmp_path: Path, pruning: dict[str, Any], update: int) -> None:
    estimators = [{"name": "by_depth"}, pruning, {"name": "shared_once"}]
    (line,) = trained(config_of(tmp_path, **{"steps": 1, "advantage.estimators": estimators}))
    assert line["count/forwards_per_sample"] == (9 + update) / 4


@pytest.mark.nightly
def test_width_is_pruned_below_the_last_split(tmp_path: Path) -> None:
    estimators = [{"name": "by_depth"}, {"name": "prune_width"}, {"name": "shared_once"}]
    tree = {"name": "at", "at": [0, 1]}
    (line,) = trained(config_of(tmp_path, **{"steps": 1, "advantage.estimators": estimators, "rollout.tree": tree}))
    # sampled 1 + 2 + 4 + 4; trained 1, 2, and of the 4 of decision 2 the best and the worst
    assert line["count/forwards_per_sample"] == (11 + 1 + 2 + 2) / 4
