"""Errors for policies and rewards of other packages: each names what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mmgrpo
from mmgrpo.config.loading import validated
from mmgrpo.config.rewards import RewardConfig
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Plan, Prompt, Sample
from tests.policies.letters import letters

LetterPolicy: Any = type(letters())
PROMPTS = [Prompt("one"), Prompt("two")]


def share_of_a(samples: Sequence[Sample]) -> list[float]:
    return [(sample.text or "").count("a") / 4 for sample in samples]


def train(policy: Any, folder: Path, **config: Any) -> None:
    rollout = {"prompts_per_step": 2, "group_size": 4, **config.pop("rollout", {})}
    mmgrpo.Trainer(
        policy, {"a": share_of_a}, PROMPTS, {"output": str(folder), "steps": 1, "rollout": rollout, **config}
    ).train()


class FirstMembers(LetterPolicy):
    """Ignores the members of the plan."""

    def rollout(self, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
        plan = replace(plan or Plan(), members=None)
        return super().rollout(prompts, group_size=group_size, seed=seed, plan=plan)


class Silent(FirstMembers):
    """The same, and emits no samples."""

    def rollout(self, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
        return super().rollout(prompts, group_size=group_size, seed=seed, plan=replace(plan, on_samples=None))


class WithoutGrad(LetterPolicy):
    """Scores without grad."""

    def evaluate(self, rollout: Any, rows: Any = None, *, values: Any = ()) -> Any:
        with torch.no_grad():
            yield from list(super().evaluate(rollout, rows, values=values))


@pytest.mark.parametrize("policy", [FirstMembers, Silent])
def test_other_members_than_requested_raise(policy: type, tmp_path: Path) -> None:
    strategy = {"name": "more_where_hard", "most": 16}
    with pytest.raises(PolicyError, match=rf"{policy.__name__}\.rollout gave the samples .* \(group, member\) where"):
        train(policy(), tmp_path, rollout={"strategy": strategy})


def test_the_requested_members_train(tmp_path: Path) -> None:
    policy = letters()
    train(policy, tmp_path, rollout={"strategy": {"name": "more_where_hard", "most": 16}})
    assert float(policy.logits.detach().abs().max()) > 0


def test_unsupported_requests_of_a_plan_raise() -> None:
    plan = Plan(settings={"temperature": 3.0}, token_window=2)
    with pytest.raises(
        PolicyError, match=r"letters does not support Plan\.token_window .*, Plan\.settings \(schedules"
    ):
        letters().rollout(PROMPTS, group_size=2, seed=0, plan=plan)


def test_a_schedule_of_a_setting_that_the_policy_does_not_take_raises(tmp_path: Path) -> None:
    schedules = {"policy.temperature": {"name": "constant", "value": 3.0}}
    with pytest.raises(
        ConfigError,
        match=r"schedules: policy\.temperature: a schedule can change no setting of LetterPolicy; remove it",
    ):
        train(letters(), tmp_path, schedules=schedules)


def test_log_probabilities_without_grad_raise(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no gradient: evaluate of the policy must give log-probabilities with grad"):
        train(WithoutGrad(), tmp_path)


def test_the_doctor_names_evaluate_for_a_missing_value() -> None:
    objective = {"kl": {"divergence": "gaussian_no_dt", "beta": 0.04}}
    config = validated({"rollout": {"prompts_per_step": 2, "group_size": 4}, "objective": objective})
    results = {result.check: result for result in examine(config, letters(), {"a": share_of_a}, PROMPTS)}
    assert "letters have no gaussian_no_dt@reference" in results["first update"].measured
    assert (
        "needs gaussian_no_dt@reference; in a custom policy, give the value in evaluate" in results["first update"].fix
    )


def test_an_entry_point_of_a_reward_may_be_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "rising-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rising\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mmgrpo.rewards]\nrises = rising_rewards:rises\n")
    (tmp_path / "rising_rewards.py").write_text(
        "def rises(samples, factor=1.0):\n    return [factor * len(sample.text) for sample in samples]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plain, doubled = build_rewards(
        [RewardConfig.model_validate({"name": "rises", **more}) for more in ({}, {"label": "twice", "factor": 2.0})]
    )
    samples = [Sample(PROMPTS[0], 0, 0, text="abc")]
    assert (plain.function(samples), doubled.function(samples)) == ([3.0], [6.0])
