"""The loop of the examples gives the Trainer's updates."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from mmgrpo.examples.loop import train

from mmgrpo import Algorithm, Components, Job, Step, Trainer, build_policy, build_rewards, load_config, load_prompts_of
from mmgrpo.errors import ConfigError, StepError
from tests.policies.families import daily

TEXT = ("update.warmup.steps=3", "rollout.prompts_per_step=4", "steps=2")
IMAGE = (*TEXT, "rollout.group_size=4", "policy.call.num_inference_steps=6")
KL = ("objective.kl={divergence: k3, beta: 0.1}", "update.reference={ema: {decay: 0.5, every: 1}}")
PHASES = (
    "schedules={policy.temperature: {name: step, values: [1.5, 1.0], at: [1]}, "
    "rollout.group_size: {name: step, values: [4, 6], at: [1]}}"
)
SHORT = {
    "text": ("quickstart/arithmetic-text", TEXT),
    "image": ("quickstart/digits-image", IMAGE),
    "critic and phases": ("quickstart/arithmetic-text", (*TEXT, "advantage.critic={warmup_steps: 1}", PHASES)),
    "schedule and reference": (
        "quickstart/arithmetic-text",
        (*TEXT, *KL, "steps=3", "schedules={objective.kl.beta: {name: linear, start: 0.1, end: 0.5, steps: 2}}"),
    ),
    "schedule by a metric": (
        "quickstart/arithmetic-text",
        (*TEXT, *KL, "schedules={objective.kl.beta: {name: dual_ascent, metric: reward/mean, target: 0.9, rate: 1.0}}"),
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("case", daily(SHORT, "text", "image", "critic and phases"))
def test_the_loop_gives_the_trainers_updates_bitwise(case: str, tmp_path: Path) -> None:
    name, overrides = SHORT[case]
    overrides = (*overrides, "evaluation=null", f"output={tmp_path}")
    looped = train(name, overrides).trainable
    config = load_config(name, overrides)
    policy = build_policy(config, "cpu")
    before = [parameter.detach().clone() for parameter in policy.trainable]
    Trainer(policy, build_rewards(config.rewards), load_prompts_of(config.prompts), config).train()
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.trainable, strict=True))
    assert all(torch.equal(weight, other) for weight, other in zip(looped, policy.trainable, strict=True))


def test_the_file_fits_on_a_screen() -> None:
    assert len((Path(__file__).parents[1] / "examples" / "loop.py").read_text().splitlines()) <= 40


def test_mixed_runs_raise_in_the_loop() -> None:
    with pytest.raises(ConfigError, match=r"this is a mixed run of .*: train it by mmgrpo train"):
        train("quickstart/digits-mixed")


def test_engine_that_the_loop_does_not_connect_raises() -> None:
    engine = "rollout.engine={name: vllm, url: 'http://127.0.0.1:9'}"
    with pytest.raises(ConfigError, match=r"does not sample with it outside of policy\.use_engine"):
        train("quickstart/arithmetic-text", ["update.warmup=null", "steps=1", engine])


def test_memory_raises_until_all_updates_are_taken() -> None:
    config = load_config(
        "quickstart/arithmetic-text", ("rollout.prompts_per_step=2", "update.epochs=2", "evaluation=null")
    )
    assert config.update.num_updates == 4
    components = Components.of(
        Algorithm.of(config),
        build_policy(config, "cpu"),
        build_rewards(config.rewards),
        load_prompts_of(config.prompts),
        job=Job.of(config),
    )
    step = Step.of(components, 0, components.stream.memory)
    rollouts = step.rollout()
    rewards = step.score(rollouts)
    advantages = step.compute_advantages(rollouts, rewards)
    updates = step.update(advantages)
    for num_taken in (0, 1, 3):
        assert len(list(islice(updates, num_taken))) == num_taken
        with pytest.raises(StepError, match=r"not complete: iterate over step\.update\(advantages\) to its end"):
            step.updated_memory(rollouts, rewards, advantages)
    assert list(updates) == []
    assert step.updated_memory(rollouts, rewards, advantages) == components.stream.memory
