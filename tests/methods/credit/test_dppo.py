"""DPPO: its numbers by hand, and a pipeline that trains with a language model as its critic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo import Trainer, load_config
from mmgrpo.errors import ConfigError
from mmgrpo.training.build import build_critic
from mmgrpo.training.critic import with_critic_values
from mmgrpo.types import Prompt, Sample
from mmgrpo.values import VALUE
from tests.configs.method_steps import Step, assert_credit
from tests.policies import tiny_policies
from tests.policies.tiny_language import measured_policy_of

HERE = "tests.methods.credit.test_dppo"
CRITIC = {"name": "language", "model": f"python:{HERE}:reader", "dtype": "float32"}
TEXTS = ("red", "green squares", "red")

# reward less value: 0.5 twice and -0.5 twice, of mean 0; squares 1 over 3, whose root is 0.5773503
CREDIT = (
    Step(reward=(1.0, 0.0), groups=(0, 1), values={VALUE: [[0.5, 0.5], [0.5, 0.5]]}),
    [[0.8660254, 0.8660254], [-0.8660254, -0.8660254]],
)


def reader() -> tuple[Any, Any]:
    """The model of the critic."""
    policy = measured_policy_of("llama", lora=None)
    return policy.model, policy.processor


def painter() -> Any:
    """A pipeline."""
    return tiny_policies.pipeline_of("sd3")


def constant(samples: Sequence[Sample]) -> list[float]:
    return [0.5] * len(samples)


def config_of(output: Path, **changes: Any) -> Any:
    values = {
        "output": str(output),
        "policy.name": "denoising",
        "rollout.prompts_per_step": 3,
        "rollout.group_size": 1,
        "update.optimizer.lr": 1e-3,
        "advantage.critic.policy": CRITIC,
        "advantage.critic.optimizer.lr": 1e-2,
        **changes,
    }
    return load_config("methods/dppo", values)


def test_advantages_of_the_method() -> None:
    assert_credit("dppo", *CREDIT)


def test_bounds_grow_and_early_steps_count_less(tmp_path: Path) -> None:
    """The numbers of its code; at three steps they are worked out in tests/maths/test_modulations.py."""
    bounds, discount = config_of(tmp_path).objective.modulations
    assert (bounds.name, bounds.settings) == ("growing_bounds", {"first": 0.001, "last": 0.01, "rate": 3.0})
    assert (discount.name, discount.settings) == ("discounted_steps", {"gamma": 0.99})


def test_equal_prompts_have_one_value_at_every_step_and_run_once(tmp_path: Path) -> None:
    critic = build_critic(config_of(tmp_path), "cpu")
    with torch.no_grad():
        critic.trainable[-2].add_(torch.randn(critic.trainable[-2].shape, generator=torch.Generator().manual_seed(0)))
    policy = tiny_policies.policy_of("sd3", call={"num_inference_steps": 3})
    rollout = policy.rollout([Prompt(text) for text in TEXTS], group_size=1, seed=0)
    valued = with_critic_values(critic, rollout)
    value_BT = valued.values[VALUE]
    assert value_BT.shape == (3, 3)
    assert rollout.mask_BT.tolist() == [[True, True, False]] * 3  # the last step draws no noise
    assert torch.equal(value_BT[:, 0], value_BT[:, 1])
    assert torch.equal(value_BT[0], value_BT[2])
    assert not torch.equal(value_BT[0], value_BT[1])
    assert valued.num_forwards == len(set(TEXTS))
    language = measured_policy_of("llama", lora=None)
    hidden_D = language.path.transformer.prefill([language._encoder(Prompt("red"))], max_tokens=64).hidden_ND[0]  # pyrefly: ignore[missing-attribute]
    expected = hidden_D @ critic.trainable[-2] + critic.trainable[-1]
    torch.testing.assert_close(value_BT[0, 0], expected.detach()[0], rtol=0, atol=1e-5)


def test_critic_comes_to_expect_a_constant_reward(tmp_path: Path) -> None:
    policy = tiny_policies.policy_of("sd3", call={"num_inference_steps": 3})
    before = [parameter.detach().clone() for parameter in policy.trainable]
    config = config_of(tmp_path, steps=8, **{"advantage.critic.warmup_steps": 6})
    trainer = Trainer(policy, constant, [Prompt(text) for text in TEXTS], config)
    lines = [json.loads(line) for line in (trainer.train() / "metrics.jsonl").read_text().splitlines()]
    losses = [line["critic/loss"] for line in lines]
    assert losses[0] == pytest.approx(0.125, abs=1e-6)  # half the square of 0.5
    assert losses[-1] < losses[0] / 4
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.trainable, strict=True))


def test_a_denoising_critic_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    painter = {"name": "denoising", "model": f"python:{HERE}:painter", "dtype": "float32"}
    with pytest.raises(
        ConfigError, match=r"DenoisingPolicy makes no critic .*advantage\.critic\.policy: {name: language"
    ):
        build_critic(config_of(tmp_path, **{"advantage.critic.policy": painter}), "cpu")
