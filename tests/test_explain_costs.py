"""The forwards that the explanation counts: a run takes as many, with rounds, off-policy rows and other views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config, validated
from mmgrpo.errors import ConfigError
from mmgrpo.explain.forward_counts import forwards_per_sample
from mmgrpo.training.trainer import Trainer
from tests.policies.families import daily
from tests.test_explain import changed, numbers, rows
from tests.tiny.pipelines import PIPELINES

RUNS = {
    "all": {},
    "reference": {"objective": {"kl": {"divergence": "gaussian", "beta": 0.1}}},
    "shared": {
        "rollout": {"same_initial_noise": True, "window": {"name": "progressive", "size": 2, "interval": 1}},
        "objective": {"kl": {"divergence": "gaussian", "beta": 0.1}},
    },
    "fast_remainder": {"rollout": {"window": {"name": "fixed", "start": 0, "size": 1}}},
    "coupled": {"objective": {"ratio_level": "sequence"}, "update": {"epochs": 2, "minibatches": 2}},
    "coupled-reference": {"objective": {"ratio_level": "sequence", "kl": {"divergence": "k3", "beta": 0.1}}},
    "reward-divergence": {"advantage": {"kl": {"divergence": "gaussian", "beta": 0.1}}},
    "near": {"objective": {"selections": [{"name": "near_policy", "limit": 1e9}]}, "update": {"epochs": 2}},
    "read": {
        "rollout": {"training_states": "renoised"},
        "objective": {"kl": {"divergence": "velocity_mse", "beta": 0.1}},
        "update": {"epochs": 2},
    },
    "read-coupled": {"rollout": {"training_states": "renoised"}, "objective": {"ratio_level": "sequence"}},
    "read-nft": {
        "rollout": {"training_states": "renoised"},
        "objective": {"surrogate": None, "terms": [{"name": "diffusion_nft"}]},
        "update": {"epochs": 2},
    },
    "credit": {"advantage": {"estimators": [{"name": "log_ratio", "view": "reference", "weight": 0.1}]}},
    "credit-and-base": {
        "advantage": {"estimators": [{"name": "log_ratio", "view": "reference", "scale": 1.25, "weight": 0.1}]},
        "objective": {"kl": {"divergence": "gaussian", "beta": 0.1}},
    },
}
NUM_LEVELS = 3


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", daily(RUNS, "shared", "fast_remainder", "coupled-reference", "read-nft"))
def test_a_run_has_the_explained_costs(name: str, tmp_path: Path) -> None:
    tiny, sections = PIPELINES["sd3"], RUNS[name]
    settings = {"call": {**tiny.call, **tiny.no_cfg}, "lora": {"rank": 2}, "reading": {"num_levels": NUM_LEVELS}}
    settings |= {"fast_remainder": {"frac": 0.75}} if name == "fast_remainder" else {}
    config = validated(
        {
            "output": str(tmp_path),
            "steps": 2,
            "policy": {"name": "denoising", **settings},
            **sections,
            "rollout": {"prompts_per_step": 2, "group_size": 2, **sections.get("rollout", {})},
        }
    )
    policy = DenoisingPolicy(tiny.build(), settings)
    run = Trainer(policy, {"brightness": Brightness()}, ["a red fox", "a blue square"], config).train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last_of_step = {line["step"]: line["count/forwards_per_sample"] for line in lines}
    explained = sum(numbers(forwards_per_sample(Algorithm.of(config), 4, NUM_LEVELS), 4))
    assert sum(last_of_step.values()) / len(last_of_step) == pytest.approx(explained, abs=1e-9)


def test_a_fast_remainder_without_a_window_raises() -> None:
    config = validated({"policy": {"name": "denoising", "fast_remainder": {"frac": 0.4}}})
    with pytest.raises(
        ConfigError, match=r"policy\.fast_remainder applies to the steps after rollout\.window, which is not set"
    ):
        forwards_per_sample(Algorithm.of(config), 10)
    with pytest.raises(ConfigError, match=r"policy\.fast_remainder applies to"):
        Algorithm.of(config).window_at(DenoisingPolicy(PIPELINES["sd3"].build(), {"fast_remainder": {"frac": 0.4}}), 0)


PLANNED: dict[str, tuple[dict[str, Any], str]] = {
    # 10 groups of 16; at the least one round, at the most each of four asks for 10 groups more
    "refill": (
        {"rounds": 4},
        "at least 160 and at most 640 samples generated a step, in at least 1 and at most 4 rounds",
    ),
    "on_failure": (
        {"members": 4, "settings": {"call": {"num_inference_steps": 5}}},
        "at least 160 and at most 200 samples generated a step, in at least 1 and at most 2 rounds, 160 trained on",
    ),
    "two_stage_scouts": (
        {"scouts": 24, "best": 4, "worst": 4, "settings": {"call": {"num_inference_steps": 3}}},
        "320 samples generated a step, in 2 rounds, 80 trained on",
    ),
    # at the least all rows end before 100 decisions, at the most each of 160, then of 320, parts in two
    "branch_evenly": (
        {"every": 100, "levels": 2},
        "at least 160 and at most 640 samples generated a step, in at least 1 and at most 3 rounds",
    ),
    "with_replay": (
        {"num": 4},
        "160 samples generated a step, in 1 round, at least 0 and at most 40 scored that exist already, "
        "at least 160 and at most 200 trained on",
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_strategies_are_simulated(name: str) -> None:
    strategy, expected = PLANNED[name]
    assert expected in rows(changed(rollout={"strategy": {"name": name, **strategy}}))["strategy"]


def test_an_endless_strategy_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_planner.py").write_text(
        "from mmgrpo.maths.strategies import Strategy\n"
        "def endless():\n"
        '    """Asks on while nobody is right."""\n'
        "    def ask(rounds, setting):\n"
        "        more = not rounds or not rounds[0].reward_B.any()\n"
        "        return setting.groups(len(rounds), 1) if more else ()\n"
        "    return Strategy(ask=ask, looks_back=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    explained = rows(changed(rollout={"strategy": {"name": "python:endless_planner:endless"}}))["strategy"]
    assert "at least 16 and at most 400 samples generated a step" in explained
    assert explained.endswith("stopped after 25 rounds: the strategy must return no requests at some time")


def test_a_method_of_tokens_is_counted_as_it_runs() -> None:
    explained = rows(load_config("methods/tempo"))
    assert explained["forwards"].startswith("counted by the policy as it runs")
    assert explained["loss"].endswith("entropy_bonus * sum v H + further terms, over the kept decisions")
    with pytest.raises(ConfigError, match=r"no kind of policy is named .* include a model before the file"):
        load_config("methods/branch-grpo")


def test_all_samples_of_a_strategy_are_counted() -> None:
    explained = rows(changed(rollout={"strategy": {"name": "refill", "rounds": 4}}))
    assert "at least 0 and at most 160 trained on" in explained["strategy"]
    assert explained["in all"] == "60 steps, at least 9,600 and at most 38,400 samples, 120 updates"
    assert explained["updates"] == "1 epoch x 2 minibatches = 2 updates a rollout"
    # a sample takes 10 forwards, and 4 steps of 160 with a reference each, whether solved first or last
    assert "at least 2,880 and at most 7,680 a step" in explained["forwards"]
    cheap = {
        "name": "two_stage_scouts",
        "scouts": 24,
        "best": 4,
        "worst": 4,
        "settings": {"call": {"num_inference_steps": 3}},
    }
    # 240 of 3 forwards, 80 of 10 and of 4 + 4
    assert "2,160 a step" in rows(changed(rollout={"strategy": cheap}))["forwards"]


def test_samples_that_are_read_are_counted() -> None:
    read = changed(
        policy={"reading": {"num_levels": 6}},
        rollout={"training_states": "renoised", "window": None},
        objective={"kl": {"divergence": "velocity_mse", "beta": 0.1}},
    )
    assert rows(read)["forwards"].startswith(
        "per sample and step: rollout 16.0, reference 6.0, update 6.0; in all 28.0"
    )
    unknown = changed(
        policy={"call": {}, "reading": {"num_levels": 6}},
        rollout={"training_states": "renoised", "window": None},
        objective={"kl": {"divergence": "velocity_mse", "beta": 0.1}},
    )
    assert rows(unknown)["forwards"].startswith("per sample and step: rollout N + 6.0, reference 6.0, update 6.0, with")


def test_passes_of_the_policies() -> None:
    preference = {"name": "preference", "score_by": "sum_log_ratio", "against": "reference"}
    explained = rows(changed(objective={"surrogate": None, "kl": {"beta": 0}, "terms": [preference]}))
    assert explained["reference"] == "a pass with each pass of the policy, for preference"
    reason = "preference couples decisions, and the rollout does not know its KL or entropy"
    assert explained["coupled values"].endswith(reason)
    average = {"name": "diffusion_nft", "view": "average"}
    read = {"training_states": "renoised", "window": None}
    explained = rows(changed(rollout=read, objective={"surrogate": None, "kl": {"beta": 0}, "terms": [average]}))
    assert explained["view average"].endswith("; a pass with each pass of the policy")
    assert "rollout 14.0, average 4.0, update 4.0; in all 22.0" in explained["forwards"]


@pytest.mark.nightly
def test_a_run_has_the_explained_costs_of_its_strategy(tmp_path: Path) -> None:
    tiny = PIPELINES["sd3"]
    settings = {"call": {**tiny.call, **tiny.no_cfg}, "lora": {"rank": 2}}
    strategy = {
        "name": "two_stage_scouts",
        "scouts": 3,
        "best": 1,
        "worst": 1,
        "settings": {"call": {"num_inference_steps": 2}},
    }
    config = validated(
        {
            "output": str(tmp_path),
            "steps": 1,
            "policy": {"name": "denoising", **settings},
            "rollout": {"prompts_per_step": 2, "group_size": 2, "strategy": strategy},
        }
    )
    policy = DenoisingPolicy(tiny.build(), settings)
    run = Trainer(policy, {"brightness": Brightness()}, ["a red fox", "a blue square"], config).train()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    # 6 scouts of 2 steps, 4 samples of 4 steps, of which 3 are trained
    assert last["count/forwards_per_sample"] * 4 == 6 * 2 + 4 * 4 + 4 * 3
    assert "40 a step" in rows(config)["forwards"]
