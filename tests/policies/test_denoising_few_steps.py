"""Distilled models with few steps: sampling as distilled, training a single step, and the doctor."""

# diffusers exports lazily.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import diffusers
import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.pipeline_run import StepCall
from mmgrpo.policies.diffusion.step_sampler import StepSampler

from mmgrpo.errors import ConfigError
from mmgrpo.types import Plan
from tests.breadth import assembly
from tests.breadth.trial import prompts_and_call
from tests.policies.contract import gradients, values
from tests.policies.tiny_policies import policy_of, prompts_of

SEED = 5
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def _student(name: str, **settings: Any) -> tuple[DenoisingPolicy, list[Any]]:
    pipeline = assembly.build(name)
    prompts, call = prompts_and_call(name, pipeline)
    call |= settings.pop("call", {})
    return DenoisingPolicy(pipeline, {"call": call, "lora": {"rank": 2, "alpha": 2.0}, **settings}), prompts


@pytest.mark.parametrize(
    ("name", "steps", "sampler", "std"),
    [
        # sCM: two steps at the angles 1.57080 and 1.3, and noise of sin(1.3) times sigma_data = 0.5 between them
        ("SanaSprintPipeline", 2, "native", [0.5 * math.sin(1.3), 0.0]),
        # a flow map: shift 5 makes the levels 10/11 and 5/7, and strength 0.7 draws sin(0.7 pi / 2) of them
        ("AnyFlowPipeline", 3, "cps", [10 / 11 * math.sin(0.35 * math.pi), 5 / 7 * math.sin(0.35 * math.pi), 0.0]),
    ],
)
def test_distilled_models_sample_as_distilled(name: str, steps: int, sampler: str, std: list[float]) -> None:
    policy, prompts = _student(name)
    rollout = policy.rollout(prompts, group_size=1, seed=SEED)
    assert policy.num_decisions == steps - 1
    assert f"sampler {sampler}, which fits" in "; ".join(policy.resolved_settings)
    assert rollout.noise is not None
    torch.testing.assert_close(rollout.noise.std_BT[0], torch.tensor(std), atol=1e-5, rtol=0)
    assert rollout.mask_BT[0].tolist() == [number > 0 for number in std]
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert any(gradient.any() for gradient in gradients(policy, rollout))


def test_a_four_step_flow_model_keeps_its_levels_with_one_forward_per_step() -> None:
    policy = policy_of("flux", call={"num_inference_steps": 4}, sampler="cps", strength=0.7)
    rollout = policy.rollout(prompts_of("flux"), group_size=1, seed=SEED)
    assert rollout.noise is not None
    share_BT = rollout.noise.std_BT / (rollout.noise.level_BT - rollout.noise.step_BT)
    torch.testing.assert_close(share_BT[:, :3], torch.full_like(share_BT[:, :3], math.sin(0.35 * math.pi)))
    assert rollout.num_forwards == 4 * len(rollout.samples)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


def _first_call(kind: str, config: Mapping[str, Any], *, steps: int) -> StepCall:
    """The first step of a schedule, on random states."""
    stock: Any = getattr(diffusers, f"{kind}Scheduler")
    scheduler = stock(**config)
    scheduler.set_timesteps(steps)
    generator = torch.Generator().manual_seed(0)
    sample, output = torch.randn(2, 2, 4, 8, 8, generator=generator)
    timestep = scheduler.timesteps[0]
    return StepCall(
        iteration=0,
        stream=0,
        ordinal=0,
        scheduler=scheduler,
        model_output=output,
        timestep=timestep,
        sample=sample,
        stock=lambda twin=scheduler, **changes: stock.step(twin, **{"timestep": timestep, **changes}),
    )


@pytest.mark.parametrize(("kind", "config"), [("FlowMatchLCM", {"shift": 3.0}), ("LCM", BETAS)])
@pytest.mark.parametrize("steps", [2, 4])
def test_renoising_equals_cps_at_full_strength(kind: str, config: dict[str, Any], steps: int) -> None:
    native, ours = (
        StepSampler(sampler=name, strength=1.0, density="gaussian", reduction="mean")
        .decide(_first_call(kind, config, steps=steps), stochastic=True)
        .moments
        for name in ("native", "cps")
    )
    torch.testing.assert_close(ours.mean, native.mean, atol=3e-4, rtol=0)
    assert ours.std == pytest.approx(native.std, abs=1e-5)


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "settings"), [("sd3", {}), ("sd15-lcm", {"sampler": None}), ("flux", {})])
def test_a_single_step_trains_with_last_std(name: str, settings: dict[str, Any]) -> None:
    policy = policy_of(name, call={"num_inference_steps": 1}, last_std=0.1, **settings)
    rollout = policy.rollout(prompts_of(name), group_size=2, seed=SEED)
    assert (policy.num_decisions, rollout.mask_BT.tolist()) == (1, [[True]] * len(rollout.samples))
    assert rollout.noise is not None
    torch.testing.assert_close(rollout.noise.std_BT, torch.full_like(rollout.noise.std_BT, 0.1))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert any(gradient.any() for gradient in gradients(policy, rollout))
    greedy = policy.rollout(prompts_of(name), group_size=1, seed=SEED, plan=Plan(stochastic=()))
    assert not greedy.mask_BT.any()


@pytest.mark.nightly
def test_the_last_step_is_a_decision_with_last_std() -> None:
    plain, sampled = policy_of("sd3"), policy_of("sd3", last_std=0.05)
    rollouts = [policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED) for policy in (plain, sampled)]
    assert [policy.num_decisions for policy in (plain, sampled)] == [3, 4]
    assert [rollout.mask_BT[0].tolist() for rollout in rollouts] == [[True] * 3 + [False], [True] * 4]
    assert torch.equal(rollouts[0].old_logprob_BT[:, :3], rollouts[1].old_logprob_BT[:, :3])
    assert torch.equal(values(sampled, rollouts[1]), rollouts[1].old_logprob_BT)
    last = sampled.rollout(
        prompts_of("sd3"), group_size=2, seed=SEED, plan=Plan(stochastic=(3,), same_initial_noise=True)
    )
    assert last.mask_BT[0].tolist() == [False] * 3 + [True]
    assert len(set(last.state_BT[:2, 3].tolist())) == 1
    assert torch.equal(values(sampled, last), last.old_logprob_BT)


def test_a_deterministic_single_step_raises() -> None:
    policy = policy_of("sd3", call={"num_inference_steps": 1})
    with pytest.raises(ConfigError, match=r"set num_inference_steps to 2 or more, or policy\.last_std above 0"):
        policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    with pytest.raises(ConfigError, match=r"policy\.call\.num_inference_steps: a single step ends on the clean sample"):
        assert policy.num_decisions


@pytest.mark.nightly
def test_the_doctor_reports_excess_noise_of_few_steps() -> None:
    actual = {}
    for sampler in ("flow_sde", "cps"):
        policy = policy_of("flux", call={"num_inference_steps": 2}, sampler=sampler)
        assert not policy.resolved_settings
        policy.rollout(prompts_of("flux"), group_size=1, seed=SEED)
        actual[sampler] = policy.resolved_settings
    (message,) = actual["flow_sde"]
    assert "steps of flow_sde leave up to" in message
    assert message.endswith("sampler cps leaves none")
    assert not actual["cps"]
