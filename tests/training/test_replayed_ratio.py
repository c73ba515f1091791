"""Whole runs whose weights do not move: replayed and re-prompted rows have a ratio of 1, for every policy of tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo import Trainer
from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy
from mmgrpo.training.concat_rollouts import concat_rollouts
from mmgrpo.training.request_sampling import read
from mmgrpo.types import Plan, Source
from tests.policies import tiny_image_tokens, tiny_language, tiny_masked

REPLAY: dict[str, Any] = {"strategy": {"name": "with_replay", "num": 2, "per_prompt": 4}}
SAME_PROMPT = {"same": {"name": "template", "text": "{prompt}"}}
SECOND_ROUND: dict[str, Any] = {
    "strategy": {"name": "on_failure", "members": 2, "prompt_template": "same", "below": 1e9, "replace_failed": False},
    "prompt_templates": SAME_PROMPT,
}
REVEAL: dict[str, Any] = {"num_steps": 3, "decision": "reveal"}
WINDOW: dict[str, Any] = {"window": {"name": "random_subset", "size": 2}}
POLICIES: dict[str, tuple[Any, str, dict[str, Any], dict[str, Any]]] = {
    "texts": (tiny_language, "llama", {"top_p": 0.9}, {}),
    "masked, reveals": (tiny_masked, "eurobert", REVEAL, {}),
    "masked, tokens in random order": (tiny_masked, "eurobert", {"num_steps": 3, "order": "random"}, {}),
    "masked, bound": (
        tiny_masked,
        "eurobert",
        {"reading": {"estimate": "bound", "num_levels": 2}},
        {"training_states": "renoised"},
    ),
    "masked pictures, window": (tiny_masked, "amused", REVEAL, WINDOW),
    "image tokens, window": (tiny_image_tokens, "janus", {}, WINDOW),
}


def random_reward(samples: list[Any]) -> list[float]:
    return [float(len(set(sample.tokens)) + sample.tokens[0] % 7) for sample in samples]


def metrics_of(policy: Policy, prompts: Any, folder: Path, **config: Any) -> list[dict[str, Any]]:
    rollout = {"prompts_per_step": 2, "group_size": 3, **config.pop("rollout", {})}
    values = {
        "steps": 3,
        "rollout": rollout,
        "update": {"optimizer": {"lr": 1e-30}},
        "output": str(folder),
        **config,
    }
    Trainer(policy, {"random": random_reward}, prompts, values).train()
    (path,) = folder.rglob("metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("rows", ["replayed", "behind the prompt"])
@pytest.mark.parametrize("name", POLICIES)
def test_rows_without_an_update_have_a_ratio_of_one(name: str, rows: str, tmp_path: Path) -> None:
    module, family, settings, settings_of_rollout = POLICIES[name]
    if rows != "replayed" and settings_of_rollout.get("training_states") == "renoised":
        pytest.skip("renoised rows are of the prompt that they are read behind")
    prompts = module.prompts_of(family) if module is tiny_language else module.prompts_of()
    rollout = {**settings_of_rollout, **(REPLAY if rows == "replayed" else SECOND_ROUND)}
    lines = metrics_of(module.policy_of(family, **settings), prompts, tmp_path, rollout=rollout)
    assert [line["policy/ratio_mean"] for line in lines] == pytest.approx([1.0] * 3, abs=2e-5)
    assert max(line["policy/ratio_std"] for line in lines) < 1e-4
    assert lines[1]["count/samples"] == 10  # two groups of three, and two further rows of each


def test_replayed_rows_are_scored_at_the_temperature_that_they_were_sampled_at(tmp_path: Path) -> None:
    schedule = {"policy.temperature": {"name": "linear", "start": 4.0, "end": 1.0, "steps": 3}}
    policy = tiny_language.policy_of("llama")
    lines = metrics_of(policy, tiny_language.prompts_of("llama"), tmp_path, rollout=REPLAY, schedules=schedule)
    assert [line["policy/ratio_mean"] for line in lines] == pytest.approx([1.0] * 3, abs=1e-5)
    assert max(line["policy/ratio_std"] for line in lines) < 1e-4


@pytest.mark.nightly
def test_filters_and_estimators_take_the_decisions_of_reveals(tmp_path: Path) -> None:
    bound: dict[str, Any] = {"reading": {"estimate": "bound"}}
    for number, (settings, decisions) in enumerate(((REVEAL, "sampled"), (bound, "renoised"))):
        policy = tiny_masked.policy_of("eurobert", **settings)
        advantage = {
            "filters": [{"name": "unlikely", "below": 1.0}],
            "estimators": [{"name": "both_ends", "weight": 0.5}],
        }
        config: dict[str, Any] = {"rollout": {"training_states": decisions}, "advantage": advantage}
        folder = tmp_path / str(number)
        assert len(metrics_of(policy, tiny_masked.prompts_of(), folder, **config)) == 3


@pytest.mark.parametrize(
    ("policy", "rollout"),
    [
        ({"name": "masked", "decision": "reveal", "num_steps": 3}, {}),
        ({"name": "masked", "reading": {"estimate": "bound"}}, {"training_states": "renoised"}),
        ({"name": "denoising"}, {}),
    ],
)
def test_estimators_of_tokens_need_one_token_a_decision(policy: dict[str, Any], rollout: dict[str, Any]) -> None:
    values = {"rollout": rollout, "advantage": {"estimators": [{"name": "prefix_count"}]}}
    masked = tiny_masked.policy_of("eurobert")
    with pytest.raises(ConfigError, match=r"prefix_count reads the token of each decision.*policy.decision: token"):
        Trainer(masked, {"random": random_reward}, tiny_masked.prompts_of(), validated({**values, "policy": policy}))
    Trainer(
        masked, {"random": random_reward}, tiny_masked.prompts_of(), validated({**values, "policy": {"name": "masked"}})
    )


@pytest.mark.nightly
def test_an_estimator_of_tokens_reads_the_token_of_each_decision(tmp_path: Path) -> None:
    # one token a step, in random order: tokens are unlike their places
    policy = tiny_masked.policy_of("eurobert", order="random")
    advantage = {"estimators": [{"name": "prefix_count"}]}
    lines = metrics_of(policy, tiny_masked.prompts_of(), tmp_path, advantage=advantage)
    assert len(lines) == 3
    assert torch.isfinite(torch.tensor([line["optimizer/grad_norm"] for line in lines])).all()


def test_answers_that_are_read_by_the_current_weights_have_no_departure() -> None:
    policy = tiny_language.policy_of("llama")
    rollout = policy.rollout(tiny_language.prompts_of("llama"), group_size=2, seed=3)
    stored = [rollout.off_policy_sample(row, Source.REPLAY) for row in range(4)]
    items = [replace(sample, old_logprob_T=None) if row % 2 else sample for row, sample in enumerate(stored)]
    answers = read(policy, items, Plan(), 0)
    assert answers.unchanged_B.tolist() == [False, True, False, True]  # what is stored may be of earlier weights
    assert concat_rollouts([rollout, answers]).unchanged_B.tolist() == [True] * 4 + [False, True, False, True]
    assert not concat_rollouts([rollout, answers]).aged().unchanged_B.any()


@pytest.mark.nightly
def test_a_resumed_run_reads_the_same_decisions(tmp_path: Path) -> None:
    values = {
        "steps": 4,
        "rollout": {"prompts_per_step": 2, "group_size": 3, **REPLAY},
        "update": {"optimizer": {"lr": 1e-3}},
        "checkpoint": {"every": 2},
        "output": str(tmp_path),
    }

    def trained(resume: Path | None = None) -> Trainer:
        policy = tiny_masked.policy_of("eurobert", num_steps=3, order="random")
        trainer = Trainer(policy, {"random": random_reward}, tiny_masked.prompts_of(), values, resume=resume)
        trainer.train()
        return trainer

    uninterrupted = trained()
    weights = [parameter.detach().clone() for parameter in uninterrupted.policy.trainable]
    resumed = trained(uninterrupted.folder.path / "checkpoints" / "step-000002")
    assert all(torch.equal(parameter, two) for parameter, two in zip(weights, resumed.policy.trainable, strict=True))
