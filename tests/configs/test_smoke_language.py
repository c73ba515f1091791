"""Every method with rewards for right answers trains a tiny language model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.loading import load_config
from mmgrpo.scoring import NamedReward
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample, Scope, Score
from tests.configs.mechanisms import (
    EVERYDAY,
    PARTING,
    PARTING_ONCE,
    READING,
    TOKENS,
    applies_to,
    nightly,
    settings,
    untrained,
)
from tests.policies.families import daily
from tests.policies.tiny_language import measured_policy_of, prompts_of

SMALL: dict[str, dict[str, Any]] = {
    "gfpo": {"advantage.estimators": [{"name": "among_most_efficient", "count": 3}]},
    "gigpo": {"rollout.environment": "python:tests.training.test_credit_of_turns:Corridor"},
    "gtpo": {"advantage.estimators": [{"name": "conflict_tokens", "entropy_limit": None}]},
    "laser": {
        "advantage.estimators": [{"name": "self_rewarded", "token": 3, "start": 1, "least": 0.0}],
        "objective.terms": [{"name": "self_reward", "weight": 0.1, "token": 3, "anchor": -9.0}],
    },
    "pass-k-training": {"advantage.scale.k": 2},
    "prof": {"advantage.estimators": [{"name": "consistent_members", "reward": "steps", "count": 2}]},
    "prorl": {"update.reference.reset_every": 1},
}


PARTLY = ("gfpo", "d3s", "prof", "earl", "high-entropy-tokens")
"""Methods that give some members no advantage, or train some tokens alone."""


def halves(samples: Sequence[Sample]) -> list[Score]:
    """The two halves of a text, each worth the number of its member."""
    result = []
    for sample in samples:
        length = len(sample.text or "")
        parts = [Scope(0, length // 2, sample.member), Scope(length // 2, length, sample.member)]
        result.append(Score(0.0, scopes=parts))
    return result


def even(samples: Sequence[Sample]) -> list[float]:
    """Every answer is that of half of its group."""
    return [0.5 for _ in samples]


EXTRA_REWARDS = {
    "clip-delta-prm-shaping": [NamedReward("steps", halves, weight=0.0)],
    "copo": [NamedReward("answers", even, weight=0.0)],
    "evisrag": [NamedReward(name, halves, weight=0.0) for name in ("accuracy", "evidence")],
    "prof": [NamedReward("steps", halves, weight=0.0)],
    "rank-grpo": [NamedReward("items", halves, weight=0.0)],
    "seed-grpo": [NamedReward("answers", even, weight=0.0)],
}
"""Rewards that they read besides correctness."""


@pytest.mark.first_case
@pytest.mark.parametrize("name", nightly("tokens", TOKENS))
def test_method_trains_a_language_policy(name: str, tmp_path: Path) -> None:
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 4, "update.minibatches": 2}
    changes = {**small, "update.optimizer.lr": 1e-3, "output": str(tmp_path), **SMALL.get(name, {})}
    config = load_config(f"methods/{name}", changes)

    def right(samples: Sequence[Sample]) -> list[float]:
        return [float(sample.member < 1 + sample.group % 2) for sample in samples]  # one of four, two of four

    policy = measured_policy_of("llama", max_new_tokens=5)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    rewards = [NamedReward("right", right), *EXTRA_REWARDS.get(name, [])]
    folder = Trainer(policy, rewards, prompts_of("llama"), config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["update"]) for line in lines] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for line in lines:
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
        assert line["groups/zero_std_frac"] == 0.0
        assert line["reward/mean"] == pytest.approx(3 / 8)
        assert (line["policy/trained_frac"] == 1.0) == (name not in PARTLY)
        assert ("policy/kl_mean" in line) == (config.objective.kl.beta > 0)
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))


@pytest.mark.parametrize("name", daily(PARTING, "treerpo"))
def test_method_of_trees_trains_a_language_policy(name: str, tmp_path: Path) -> None:
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "objective.kl.beta": 0.0}
    tree = {"rollout.strategy.every": 2, "rollout.strategy.factor": 2}
    config = load_config(f"methods/{name}", {**small, **tree, "update.optimizer.lr": 1e-3, "output": str(tmp_path)})

    def right(samples: Sequence[Sample]) -> list[float]:
        return [float(sample.member in (0, 2)) for sample in samples]

    policy = measured_policy_of("llama", max_new_tokens=6)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(policy, {"right": right}, prompts_of("llama"), config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/rounds"] for line in lines] == [3, 3]
    for line in lines:
        assert line["reward/mean"] == pytest.approx(2 / 8)
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
        # of each group: the first segments differ, 1/2 and 0; the second ones do not, 1/2 and 1/2 or 0 and 0; of the
        # leaves those below root 0 do; each segment has 2 tokens
        assert line["policy/trained_frac"] == pytest.approx((2 + 4) * 2 / ((2 + 4 + 8) * 2))
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))


@pytest.mark.first_case
@pytest.mark.parametrize("name", PARTING_ONCE)
def test_method_with_one_branching_round_trains_a_language_policy(name: str, tmp_path: Path) -> None:
    changes = {"steps": 2, "rollout.prompts_per_step": 2, **PARTING_ONCE[name], "update.optimizer.lr": 1e-3}

    def right(samples: Sequence[Sample]) -> list[float]:
        return [float(sample.member in (0, 3, 4)) for sample in samples]

    policy = measured_policy_of("llama", max_new_tokens=8)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(
        policy,
        {"right": right},
        prompts_of("llama"),
        load_config(f"methods/{name}", {**changes, "output": str(tmp_path)}),
    ).train()
    for line in [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]:
        assert (line["rollout/rounds"], line["reward/mean"]) == (2, 0.5)
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))


def test_every_function_that_a_method_of_tokens_names_is_trained() -> None:
    assert {applies_to(f"methods/{name}") for name in TOKENS} == {"both", "tokens"}
    assert untrained("tokens", [*TOKENS, *READING, *PARTING, *PARTING_ONCE]) == set()


def test_daily_configurations_set_every_key() -> None:
    assert set(EVERYDAY["tokens"]) < set(TOKENS)
    everyday = {result for name in EVERYDAY["tokens"] for result in settings(f"methods/{name}")}
    assert {result for name in TOKENS for result in settings(f"methods/{name}")} - everyday == set()


def test_groups_of_equal_rewards_train_by_entropy(tmp_path: Path) -> None:
    small = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "output": str(tmp_path)}
    right = {"right": lambda samples: [float(sample.group % 2) for sample in samples]}
    folder = Trainer(
        measured_policy_of("llama", max_new_tokens=5), right, prompts_of("llama"), load_config("methods/rl-zvp", small)
    ).train()
    (line,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert line["reward/std"] == 0.5  # 0 in one group, 1 in the other
    assert line["groups/zero_std_frac"] == 0.0  # both groups have a gradient
    assert line["optimizer/grad_norm"] > 0


def test_process_supervision_trains(tmp_path: Path) -> None:
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 4, "update.minibatches": 2}
    config = load_config("methods/process-supervision", {**small, "update.optimizer.lr": 1e-3, "output": str(tmp_path)})

    policy = measured_policy_of("llama", max_new_tokens=5)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(policy, [NamedReward("steps", halves, weight=0.0)], prompts_of("llama"), config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["update"]) for line in lines] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for line in lines:
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
        assert line["policy/trained_frac"] == 1.0
        assert "policy/kl_mean" in line
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))


@pytest.mark.parametrize("name", ["ngrpo", "nsr"])
def test_groups_that_are_all_wrong_train(name: str, tmp_path: Path) -> None:
    small = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "output": str(tmp_path)}
    config = load_config(f"methods/{name}", small)
    wrong = {"right": lambda samples: [0.0 for _ in samples]}
    folder = Trainer(measured_policy_of("llama", max_new_tokens=5), wrong, prompts_of("llama"), config).train()
    (line,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert line["groups/zero_std_frac"] == 0.0
    assert line["policy/trained_frac"] == 1.0
    assert line["optimizer/grad_norm"] > 0
