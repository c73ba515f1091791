"""``policy.step_quantization``: weights in a format of torchao at the steps of a rollout that are not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion.policy import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness
from torch import nn

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import validated
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.types import Plan
from tests.policies.approximated_runs import run_config, train_on_exact_steps
from tests.policies.contract import gradients, relative_difference, sample_difference, values
from tests.policies.tiny_policies import policy_of, prompts_of, settings_of

pytest.importorskip("torchao", reason="the extra quantization is not installed")

SEED, STEPS, WINDOW = 3, 6, (2, 3)
FLOAT8 = {"name": "Float8WeightOnlyConfig"}
INT8 = {"name": "Int8DynamicActivationInt8WeightConfig"}


def quantized_policy(step_quantization: dict[str, Any] | None, family: str = "sd3", **settings: Any) -> DenoisingPolicy:
    call = {**settings_of(family)["call"], "num_inference_steps": STEPS}
    return policy_of(family, call=call, step_quantization=step_quantization, **settings)


def weight_kinds(policy: DenoisingPolicy) -> set[str]:
    layers = [layer for layer in policy.pipeline.transformer.modules() if isinstance(layer, nn.Linear)]
    return {type(layer.weight).__name__ for layer in layers}


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [FLOAT8, pytest.param(INT8, marks=pytest.mark.nightly)])
def test_trained_steps_run_with_the_real_weights(settings: dict[str, Any]) -> None:
    plain, policy = quantized_policy(None), quantized_policy(settings)
    plan = Plan(stochastic=WINDOW)
    rollout, expected = (
        each.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=plan) for each in (policy, plain)
    )
    assert sample_difference(rollout.samples, expected.samples) > 0
    assert rollout.num_forwards == expected.num_forwards
    assert weight_kinds(policy) == {"Parameter"}
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert torch.equal(values(plain, rollout), rollout.old_logprob_BT)  # by a policy without quantized weights
    assert relative_difference(gradients(policy, rollout), gradients(plain, rollout)) == 0


def test_quantized_steps_are_those_outside_the_window() -> None:
    policy, kinds = quantized_policy(FLOAT8), []
    layer = policy.pipeline.transformer.transformer_blocks[0].ff.net[2]
    layer.register_forward_pre_hook(lambda module, inputs: kinds.append(type(module.weight).__name__))
    policy.rollout(prompts_of("sd3")[:1], group_size=1, seed=SEED, plan=Plan(stochastic=WINDOW))
    sampled = kinds[:STEPS]
    assert sampled == [
        "Float8Tensor", "Float8Tensor", "Parameter", "Parameter", "Float8Tensor", "Float8Tensor",
    ]  # fmt: skip
    kinds.clear()
    policy.rollout(prompts_of("sd3")[:1], group_size=1, seed=SEED, plan=Plan(stochastic=()))
    assert set(kinds) == {"Parameter"}  # an evaluation


@pytest.mark.nightly
def test_a_cache_and_quantized_steps_combine() -> None:
    cache = {"name": "FirstBlockCache", "threshold": 10.0}
    plan = Plan(stochastic=WINDOW)
    policy, cached = (quantized_policy(each, "flux", cache=cache) for each in (FLOAT8, None))
    rollout, expected = (
        each.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan) for each in (policy, cached)
    )
    assert rollout.num_forwards == expected.num_forwards < STEPS * len(rollout.samples)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert sample_difference(rollout.samples, expected.samples) > 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"step_quantization": {"name": "Float9"}}, "torchao has no Float9; it has .*Float8WeightOnlyConfig"),
        ({"step_quantization": {**FLOAT8, "limit": 1}}, "unexpected keyword argument 'limit'"),
        ({"step_quantization": FLOAT8, "lora": None}, "transformer has no frozen linear layer: set policy.lora"),
        ({"step_quantization": FLOAT8, "compile": True}, "compile does not support step_quantization"),
    ],
)
def test_settings_that_cannot_work_are_an_error(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        quantized_policy(**changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may support the format")
def test_a_format_that_needs_a_gpu_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"policy\.step_quantization: a layer of shape .*Float8 dynamic quantization"):
        quantized_policy({"name": "Float8DynamicActivationFloat8WeightConfig"})


def test_a_window_over_all_steps_is_an_error() -> None:
    policy = quantized_policy(FLOAT8, last_std=0.1)
    with pytest.raises(ConfigError, match=f"step_quantization: all {STEPS} steps are trained"):
        policy.rollout(prompts_of("sd3")[:1], group_size=1, seed=SEED, plan=Plan(stochastic=tuple(range(STEPS))))
    config = validated({"policy": {"name": "denoising", "model": "m", "step_quantization": FLOAT8}})
    with pytest.raises(ConfigError, match=r"step_quantization applies to the steps outside rollout\.window"):
        Algorithm.of(config).window_at(policy, 0)


def test_sharded_weights_are_an_error() -> None:
    with pytest.raises(ConfigError, match="step_quantization does not support sharded denoisers"):
        quantized_policy(FLOAT8).shard(lambda *args, **kwargs: None)


def test_explain_names_the_format() -> None:
    policy = {"name": "denoising", "model": "m", "step_quantization": FLOAT8, "call": {"num_inference_steps": STEPS}}
    config = validated({"policy": policy, "rollout": {"window": {"name": "fixed", "start": 2, "size": 2}}})
    lines = " ".join(explanation(config).split())
    assert "other steps run with weights of Float8WeightOnlyConfig, which rollouts hold besides" in lines


@pytest.mark.nightly
def test_a_run_trains_and_doctor_measures_ratio_1(tmp_path: Path) -> None:
    policy = quantized_policy(FLOAT8)
    config = run_config(policy, tmp_path)
    results = {r.check: r for r in examine(config, policy, {"brightness": Brightness()}, prompts_of("sd3"))}
    assert results["on-policy gap"].measured.startswith("log-prob 0.0e+00, log-ratio 0.0e+00;")
    train_on_exact_steps(policy, config)
