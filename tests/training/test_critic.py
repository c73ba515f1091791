"""Runs with a critic: its values, its training alongside the policy, errors, and resuming."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo import RunConfig, Trainer, load_config
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.scoring import NamedReward
from mmgrpo.types import Sample
from mmgrpo.values import ENTROPY, VALUE
from tests.policies.contract import move
from tests.policies.test_language_ways import t5
from tests.policies.tiny_language import measured_policy_of, prompts_of

HERE = "tests.training.test_critic"
SMALL = {
    "steps": 2,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 2,
    "update.optimizer.lr": 1e-3,
    "update.minibatches": 2,
}


def writer() -> tuple[Any, Any]:
    """The model that the runs train."""
    policy = measured_policy_of("llama", lora=None)
    return policy.model, policy.processor


def certain(samples: Sequence[Sample]) -> list[float]:
    return [1.0] * len(samples)


def sometimes(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member) for sample in samples]


def config_of(output: Path, base: str = "ppo", **changes: Any) -> RunConfig:
    named = {"name": "language", "model": f"python:{HERE}:writer", "dtype": "float32", "max_new_tokens": 5}
    return load_config(f"methods/{base}", {**SMALL, "advantage.critic.policy": named, "output": str(output), **changes})


def trainer_of(config: RunConfig, reward: Any = sometimes, *, resume: Path | None = None) -> Trainer:
    return Trainer(measured_policy_of("llama", max_new_tokens=5), reward, prompts_of("llama"), config, resume=resume)


def lines_of(trainer: Trainer) -> list[dict[str, Any]]:
    text = (trainer.train() / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.nightly
def test_it_learns_a_constant_reward(tmp_path: Path) -> None:
    config = config_of(tmp_path, **{"steps": 4, "advantage.critic.optimizer.lr": 3e-3})
    lines = lines_of(trainer_of(config, certain))
    # nothing is expected at first, and 1 comes: half of 1, whose derivative by b is -1; all rewards are 1
    assert (lines[0]["critic/loss"], lines[0]["critic/value_mean"]) == (0.5, 0.0)
    assert lines[0]["critic/grad_norm"] > 1.0
    losses = [line["critic/loss"] for line in lines]
    assert len(losses) == 8
    assert all(later < loss for loss, later in itertools.pairwise(losses))
    assert losses[-1] < 0.02
    assert lines[-1]["critic/value_mean"] == pytest.approx(1.0, abs=0.1)
    # the policy has no gradient while all values are 0, since whitened advantages of equal rewards are 0
    assert lines[0]["optimizer/grad_norm"] == 0.0
    # sampled, valued, half of them trained on by the critic alone; at the end all are trained on by both
    assert lines[0]["count/forwards_per_sample"] == 2.5
    assert lines[-1]["count/forwards_per_sample"] == 4.0


@pytest.mark.nightly
def test_the_policy_trains_on_unexpected_rewards(tmp_path: Path) -> None:
    trainer = trainer_of(config_of(tmp_path))
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    lines = lines_of(trainer)
    assert [line["update"] for line in lines] == [0, 1, 0, 1]
    assert all(line["optimizer/grad_norm"] > 0 and line["policy/on_policy_gap"] < 1e-5 for line in lines)
    assert any(not torch.equal(now, then) for now, then in zip(trainer.parameters, before, strict=True))


def test_the_value_is_a_number_on_the_state_before_the_token() -> None:
    policy = measured_policy_of("llama", max_new_tokens=5)
    body = measured_policy_of("llama", max_new_tokens=5, lora=None)
    critic, model = body.critic(), body.model
    move(critic.trainable)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=0)
    overridden = critic.override_prompts(rollout, [sample.prompt for sample in rollout.samples])
    result_BT = torch.zeros(rollout.shape)
    with torch.no_grad():
        for part in critic.evaluate(overridden, values=(VALUE,)):
            assert part.rows is not None
            result_BT[part.rows[:, None], torch.tensor(part.columns)] = part.values[VALUE]
    weight_D, bias_1 = critic.trainable[-2:]
    for row, completion in enumerate(overridden.trace.completions):
        prompt = overridden.trace.prompts[overridden.trace.prompt_of_B[row]]
        ids = torch.cat([prompt.ids_P, completion.token_T])[None]
        with torch.no_grad():
            hidden_LD = model.base_model(input_ids=ids).last_hidden_state[0]
            value_T = hidden_LD[prompt.length - 1 : -1] @ weight_D + bias_1
        torch.testing.assert_close(result_BT[row, : len(value_T)], value_T, rtol=0, atol=1e-5)
        assert float(value_T.std()) > 1e-4
    with pytest.raises(ConfigError, match="a critic gives value and no entropy"):
        next(critic.evaluate(overridden, values=(ENTROPY,)))


@pytest.mark.nightly
def test_a_run_with_a_critic_resumes_as_the_uninterrupted_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, **{"checkpoint.every": 1, "advantage.critic.optimizer.lr": 1e-2})
    uninterrupted = trainer_of(config)
    folder = uninterrupted.train()
    again = trainer_of(config, resume=folder / "checkpoints" / "step-000001")
    assert again.critic is not None
    assert uninterrupted.critic is not None
    assert again.critic.metrics == {}
    again.train()
    for ours, theirs in (
        (again.parameters, uninterrupted.parameters),
        (again.critic.parameters, uninterrupted.critic.parameters),
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert again.critic.metrics == uninterrupted.critic.metrics
    state = uninterrupted.critic.state_dict()
    with pytest.raises(ValueError, match="a critic's weights are"):
        again.critic.load_state_dict({**state, "weights": state["weights"][::-1]})


@pytest.mark.first_case
@pytest.mark.parametrize("method", ["dvpo", "direct-advantage-policy-optimization"])
def test_first_the_critic_moves_alone_and_then_the_policy(method: str, tmp_path: Path) -> None:
    still = {
        "advantage.critic.warmup_steps": 1,
        "advantage.critic.freeze_after": 1,
        "checkpoint.every": 1,
        "advantage.critic.optimizer.lr": 1e-2,
    }
    config = config_of(tmp_path, method, **still)
    trainer = trainer_of(config)
    assert trainer.critic is not None
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    expected = [parameter.detach().clone() for parameter in trainer.critic.parameters]
    lines = lines_of(trainer)
    assert ["critic/loss" in line for line in lines] == [True, True, False, False]
    assert all(line["optimizer/grad_norm"] > 0 for line in lines[2:])
    first = trainer_of(config, resume=trainer.folder.path / "checkpoints" / "step-000001")
    assert first.critic is not None
    for now, then in zip(first.parameters, before, strict=True):
        assert torch.equal(now, then)
    assert any(not torch.equal(now, then) for now, then in zip(first.critic.parameters, expected, strict=True))
    for ours, theirs in zip(first.critic.parameters, trainer.critic.parameters, strict=True):
        assert torch.equal(ours, theirs)
    assert any(not torch.equal(now, then) for now, then in zip(trainer.parameters, before, strict=True))


def test_a_policy_that_never_trains_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"advantage.critic.warmup_steps=2 leaves the policy none of steps=2"):
        trainer_of(config_of(tmp_path, "dvpo", **{"advantage.critic.warmup_steps": 2}))


def test_a_model_that_gives_logits_alone_is_no_critic() -> None:
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration needs the plain path"):
        t5(lora=None).critic()


def test_ppo_without_a_critic_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="methods/ppo needs a critic, and the run has none"):
        trainer_of(config_of(tmp_path, "ppo", **{"advantage.critic": None}))


def test_value_estimator_without_a_critic_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokens have no value value"):
        trainer_of(config_of(tmp_path, "ppo", **{"about.method": None, "advantage.critic": None})).train()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage.critic.policy": None}, "advantage.critic.policy: the policy of this run is a live one"),
        (
            {
                "advantage.critic.policy": {
                    "name": "denoising",
                    "model": "python:tests.policies.tiny_policies:build_sd3",
                }
            },
            "no critic",
        ),
    ],
)
def test_unsupported_critics_raise_before_the_first_sample(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_of(config_of(tmp_path, **changes))


def test_a_checkpoint_without_a_critic_is_of_another_run(tmp_path: Path) -> None:
    bare: dict[str, Any] = {"about.method": None, "advantage.critic": None, "advantage.estimators": []}
    folder = trainer_of(config_of(tmp_path, **bare)).train()
    config = config_of(tmp_path, **{key: value for key, value in bare.items() if key != "advantage.critic"})
    with pytest.raises((CheckpointError, ConfigError), match="critic"):
        trainer_of(config, resume=folder)


def test_doctor_checks_the_critic(tmp_path: Path) -> None:
    """Four samples, by a head that begins at 0."""
    policy = measured_policy_of("llama", max_new_tokens=5)
    findings = examine(config_of(tmp_path), policy, [NamedReward("sometimes", sometimes)], prompts_of("llama"))
    (result,) = [finding for finding in findings if finding.check == "critic"]
    assert result.ok
    assert re.fullmatch(r"predicts 0 to 0 of \d+ decisions", result.measured)
