"""Mechanisms that a run never reaches, or without inputs: the warning before the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import pytest
import yaml
from mmgrpo.rewards.text.environment_return import EnvironmentReturn

from mmgrpo import Trainer
from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config, shipped
from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.explain.idle import idle_mechanisms
from mmgrpo.scoring import NamedReward
from mmgrpo.types import Prompt, Sample
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import measured_policy_of, prompts_of

LATE = {
    "prorl": ("update.reference: it first moves after step 250", 251),
    "ppl-position": ("advantage.estimators.late_decisions starts at step 200", 201),
    "laser": ("advantage.estimators.self_rewarded starts at step 200", 201),
    "re-schedule": ("schedules.advantage.estimators.column_weight.at_zero: the value is 2.0 at every step", 171),
    "rlvr-linearity": ("update.hooks: slow_fast first acts after 100 updates, of which the run has 30", 100),
    "curriculum-grpo": ("schedules.rewards.length_peak.max_length: the value is 512 at every step", 151),
    "scaf-grpo": ("rollout.strategy starts at step 50", 51),
    "spa-rl": ("advantage.critic.warmup_steps: the policy does not train before step 100", 101),
    "dvpo": ("advantage.critic.warmup_steps: the policy does not train before step 100", 101),
    "direct-advantage-policy-optimization": (
        "advantage.critic.warmup_steps: the policy does not train before step 100",
        101,
    ),
    "latr": ("schedules.rollout.strategy.share: it changes at step 80", 201),
    "diver": ("rewards (unique_formulas).schedule: the factor is 1 at every step", 100),
}
"""What of a method has no effect in 30 steps, and the steps in which it has."""


@pytest.mark.parametrize("name", LATE)
def test_mechanism_that_starts_after_the_last_step_is_a_warning(name: str) -> None:
    text, steps = LATE[name]
    late = {"rollout.environment": {"name": "bandit"}} if name == "spa-rl" else {}
    sentences = idle_mechanisms(Algorithm.of(load_config(f"methods/{name}", late | {"steps": 30})))
    assert sentences[0].startswith(f"no effect in 30 steps: {text}")
    assert " ".join(explanation(load_config(f"methods/{name}", late | {"steps": 30})).split()).count(text) == 1
    assert idle_mechanisms(Algorithm.of(load_config(f"methods/{name}", late | {"steps": steps}))) == ()
    assert len(idle_mechanisms(Algorithm.of(load_config(f"methods/{name}", late | {"steps": steps - 1})))) == len(
        sentences
    )


def test_no_other_method_starts_later_than_30_steps() -> None:
    names = [name.removeprefix("methods/") for name in shipped("methods")]
    late = {
        name
        for name in names
        if idle_mechanisms(Algorithm.of(load_config(f"methods/{name}", {"policy": None, "steps": 30})))
    }
    assert late == set(LATE)


def test_phases_and_weights_that_move_after_the_last_step_are_warnings() -> None:
    phases = {"objective.kl.beta": {"name": "step", "values": [0.1, 0.0], "at": [30]}}
    values = {"objective.kl.divergence": "k3", "schedules": phases}
    (sentence,) = idle_mechanisms(Algorithm.of(load_config("methods/grpo", {**values, "steps": 30})))
    assert sentence.startswith("no effect in 30 steps: schedules.objective.kl.beta: it changes at step 30")
    assert idle_mechanisms(Algorithm.of(load_config("methods/grpo", {**values, "steps": 31}))) == ()
    weight = {"name": "linear", "start": 1.0, "end": 0.0, "begin": 29, "steps": 11}
    rewards = [{"name": "brightness", "schedule": weight}]
    (sentence,) = idle_mechanisms(Algorithm.of(load_config("methods/grpo", {"rewards": rewards, "steps": 30})))
    assert sentence.startswith("no effect in 30 steps: rewards (brightness).schedule: the factor is 1 at every step")
    assert idle_mechanisms(Algorithm.of(load_config("methods/grpo", {"rewards": rewards, "steps": 31}))) == ()


LANGUAGE = {"policy": {"name": "language", "model": "m"}}
DENOISING = {"policy": {"name": "denoising", "model": "m"}}
EVALUATION = {"evaluation.prompts": "rows.jsonl"}
TURNS = {
    "rollout.strategy": {"name": "take_turns", "roles": ["coder", "tester"], "turns": 2},
    "rollout.prompt_templates": {
        "coder": {"name": "role", "text": "{prompt}"},
        "tester": {"name": "role", "text": "{prompt}"},
    },
}
DRAFTED = {
    "rollout.strategy": {"name": "revise", "prompt_template": "draft"},
    "rollout.prompt_templates": {"draft": {"name": "after_answers", "text": "{answer}"}},
}
VIEW = {"objective.views": {"blind": {"prompt_template": {"name": "masked_image", "share": 0.6}}}}

UNMET: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "rollout.max_turns, rollout.environment_workers without rollout.environment",
        {"rollout.max_turns": 3, "rollout.environment_workers": 1},
        {"rollout.environment": {"name": "bandit"}},
    ),
    (
        "rollout.prompt_templates.draft without a rollout.strategy that names it",
        {"rollout.prompt_templates": {"draft": {"name": "after_answers", "text": "{answer}"}}},
        {"rollout.strategy": {"name": "revise", "prompt_template": "draft"}},
    ),
    (
        "rollout.prompt_templates.tester.reads: codr without a prompt template of that name",
        {**TURNS, "rollout.prompt_templates.tester.reads": ["codr"]},
        {"rollout.prompt_templates.tester.reads": ["coder"]},
    ),
    (
        "rollout.prompt_templates.tester.same: critic without a prompt template of that name",
        {**TURNS, "rollout.prompt_templates.tester.same": ["critic"]},
        {
            "rollout.prompt_templates.critic": {"name": "template", "text": "{prompt}"},
            "rollout.strategy.roles": ["critic", "coder", "tester"],
            "rollout.strategy.turns": 3,
        },
    ),
    (
        "advantage.off_policy_baseline without a rollout.strategy with rows",
        {"advantage.off_policy_baseline": "separate"},
        {"rollout.strategy": {"name": "with_answer", "column": "answer"}},
    ),
    (
        "advantage.off_policy_baseline without a rollout.strategy with rows",
        {"advantage.off_policy_baseline": "separate", "rollout.strategy": "refill"},
        {"rollout.strategy": {"name": "with_replay"}},
    ),
    (
        "objective.off_policy without a rollout.strategy with rows",
        {**DRAFTED, "objective.off_policy": {"surrogate": "unclipped"}},
        {"rollout.strategy.train_without_template": True},
    ),
    (
        "advantage.filtered_samples without advantage.filters",
        {"advantage.filtered_samples": "mask"},
        {"advantage.filters": [{"name": "unlikely", "below": 0.1}]},
    ),
    (
        "advantage.critic without an estimator that reads its values",
        {"advantage.critic": {}},
        {"advantage.estimators": [{"name": "gae", "decay": 0.9}]},
    ),
    (
        "objective.ratio_level, objective.step_weight without objective.surrogate",
        {
            "objective.surrogate": None,
            "objective.terms": ["negative_logprob"],
            "objective.ratio_level": "sequence",
            "objective.step_weight": "inverse_step",
        },
        {"objective.surrogate": {"name": "clipped", "low": 0.1, "high": 0.1}},
    ),
    (
        "objective.truncated without a policy whose samples have a length limit",
        {**DENOISING, "objective.truncated": "zero"},
        LANGUAGE,
    ),
    (
        "objective.kl.divergence without objective.kl.beta above 0",
        {"objective.kl.divergence": "k3"},
        {"objective.kl.beta": 0.1},
    ),
    (
        "objective.kl.divergence without objective.kl.beta above 0",
        {"objective.kl.divergence": "k3"},
        {"schedules": {"objective.kl.beta": {"name": "linear", "start": 0, "end": 0.1, "steps": 5}}},
    ),
    (
        "objective.views.blind without a term, estimator, filter or modulation that names it",
        VIEW,
        {"objective.terms": [{"name": "divergence", "view": "blind"}]},
    ),
    ("update.cycle_masks without update.epochs above 1", {"update.cycle_masks": True}, {"update.epochs": 2}),
    (
        "update.reference without objective.kl.beta above 0, or another reader of the reference",
        {"update.reference": {"reset_every": 5}},
        {"objective.kl": {"beta": 0.1, "divergence": "k3"}},
    ),
    (
        "update.reference without objective.kl.beta above 0, or another reader of the reference",
        {"update.reference": {"reset_every": 5}},
        {"objective.terms": [{"name": "divergence"}]},
    ),
    (
        "evaluation.samples_per_prompt without evaluation.sampled: true",
        {**LANGUAGE, **EVALUATION, "evaluation.samples_per_prompt": 4},
        {"evaluation.sampled": True},
    ),
    (
        "checkpoint.warmup_every without update.warmup",
        {"checkpoint.warmup_every": 3},
        {"update.warmup": {"examples": "careless_sums", "steps": 9}},
    ),
]
"""What has no effect, in which run, and what gives it one."""


@pytest.mark.parametrize(("text", "values", "fix"), UNMET)
def test_setting_without_the_one_that_it_needs_is_a_warning(
    text: str, values: dict[str, Any], fix: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("{}")
    (sentence,) = idle_mechanisms(Algorithm.of(load_config(file, values)))
    assert sentence.startswith(f"no effect: {text}")
    assert sentence.endswith("; set that too, or leave it out")
    assert idle_mechanisms(Algorithm.of(load_config(file, {**values, **fix}))) == ()


def test_setting_of_a_method_for_runs_that_turn_it_on_is_no_warning() -> None:
    config = load_config("methods/diffu-grpo", {"policy": {"name": "masked", "model": "m"}})
    assert (config.update.cycle_masks, config.update.epochs) == (True, 1)
    assert idle_mechanisms(Algorithm.of(config)) == ()


def test_warning_is_printed_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "output": str(tmp_path)}
    config = load_config("methods/ppl-position", {**small, "rollout.strategy": {"name": "fixed"}})
    Trainer(measured_policy_of("llama", max_new_tokens=2), by_member, prompts_of("llama"), config).train()
    output = capsys.readouterr()
    assert "late_decisions starts at step 200" in " ".join((output.out + output.err).split())


def by_member(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member) for sample in samples]


def test_view_of_images_without_images_is_an_error(tmp_path: Path) -> None:
    small = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "output": str(tmp_path)}
    bare = {**small, "about.method.needs": []}  # as in a custom file, whose method states no needs
    with pytest.raises(ConfigError) as raised:
        Trainer(measured_policy_of("llama"), by_member, prompts_of("llama"), load_config("methods/papo", bare))
    assert str(raised.value) == (
        "objective.views.masked: masked_image changes the images of a prompt, and none of the "
        f"{len(prompts_of('llama'))} prompts has one: train on rows with images, or leave out objective.views.masked "
        "and its reader (objective.terms)"
    )
    with pytest.raises(ConfigError, match="noised_image changes the images of a prompt, and none"):
        Trainer(measured_policy_of("llama"), by_member, prompts_of("llama"), load_config("methods/vogue", bare))


def test_rewards_of_turns_that_the_tools_never_give_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"include": ["quickstart/calculator-tool", "methods/gigpo"]}))
    with pytest.raises(ConfigError, match="anchor_states reads the rewards of turns, and the environment tools gives"):
        explanation(load_config(path))
    estimators = [{"name": "anchor_states", "reward": "right"}]
    assert "GiGPO" in explanation(load_config(path, {"advantage.estimators": estimators}))


@pytest.mark.parametrize("method", ["methods/gigpo", "methods/ui-s1"])
def test_rewards_of_turns_depend_on_the_settings_of_an_environment(method: str) -> None:
    simulated = {"name": "simulated", "model": "m", "system": "Talk.", "url": "http://127.0.0.1:8000/v1"}
    combined = {"name": "combined", "parts": [{"name": "sql"}, {"name": "python"}]}
    for environment in (simulated, combined, {**combined, "partner": simulated}):
        with pytest.raises(ConfigError, match=f"the environment {environment['name']} gives none"):
            explanation(load_config(method, {"rollout.environment": environment}))
    rewarding = {**simulated, "reward_tag": "score"}
    for environment in (rewarding, {**combined, "partner": rewarding}):
        assert environment["name"] in explanation(load_config(method, {"rollout.environment": environment}))  # pyrefly: ignore[unsupported-operation]


@final
class Silent(Environment):
    """Answers twice and never gives a reward."""

    def reset(self, prompt: Prompt) -> Turn:
        self.num_turns = 0
        return Turn(text="go")

    def step(self, text: str) -> Turn:
        self.num_turns += 1
        return Turn(text="on", done=self.num_turns == 2)


def test_rewards_of_turns_that_no_exchange_has_are_an_error_at_the_first_step(tmp_path: Path) -> None:
    small = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "output": str(tmp_path)}
    config = load_config("methods/gigpo", {**small, "rollout.environment": "python:tests.configs.test_idle:Silent"})
    rewards = [NamedReward("returns", EnvironmentReturn()), NamedReward("right", by_member)]
    trainer = Trainer(terse("llama", max_new_tokens=60), rewards, prompts_of("llama"), config)
    with pytest.raises(ConfigError, match="of 4 conversations that ended in the first step none has any"):
        trainer.train()


def test_filter_without_effect_is_a_note_at_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CAPO with bounds that no token reaches at the run's learning rate, and with some that tokens reach."""
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "output": str(tmp_path)}
    for bound, is_idle in ((1e6, True), (1e-9, False)):
        filters = [{"name": "within_curvature", "shift": bound, "divergence": bound}]
        config = load_config(
            "methods/capo", {**small, "advantage.filters": filters, "advantage.filtered_samples": "mask"}
        )
        folder = Trainer(measured_policy_of("llama", max_new_tokens=3), by_member, prompts_of("llama"), config).train()
        output = capsys.readouterr()
        text = " ".join((output.out + output.err).split())
        assert text.count("no decision is changed by credit/within_curvature in the first step") == is_idle
        line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
        assert (line["credit/within_curvature/changed_frac"] == 0.0) == is_idle
