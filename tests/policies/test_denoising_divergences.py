"""Divergences from the reference and from the behavior policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.types import Plan, Rollout
from mmgrpo.values import DRIFT, ENTROPY, OLD, REFERENCE, Value, from_reference
from tests.policies.contract import move, values
from tests.policies.families import daily
from tests.policies.tiny_policies import measured_policy_of, policy_of, prompts_of

SEED = 3
NAMES = ("k1", "k2", "k3", "gaussian", "gaussian_no_dt", "velocity_mse")
MEANS = Plan(values=(DRIFT,))


def _divergences(policy: DenoisingPolicy, rollout: Rollout, name: str) -> Tensor:
    result_BT = torch.zeros(rollout.shape)
    value = from_reference(name)
    for evaluation in policy.evaluate(rollout, values=[value]):
        assert evaluation.rows is not None
        assert set(evaluation.values) == {value}
        result_BT[evaluation.rows, evaluation.columns[0]] = evaluation.values[value][:, 0]
    return result_BT


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", daily(NAMES, "k3", "gaussian", "velocity_mse"))
def test_divergence_is_zero_at_the_reference_and_positive_elsewhere(name: str) -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    with torch.no_grad():
        assert not _divergences(policy, rollout, name).any()
    move(policy.trainable)
    kl_BT = _divergences(policy, rollout, name)
    inside_B = kl_BT[rollout.mask_BT]
    assert bool((inside_B != 0).all() if name == "k1" else (inside_B > 0).all())
    inside_B.sum().backward()
    # SD3's last block throws its text stream away: the two factors on the queries of it reach nothing
    assert sum(p.grad is None or not bool(p.grad.any()) for p in policy.trainable) == 2


def test_estimators_match_the_two_log_probabilities() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    move(policy.trainable, scale=0.2)
    now_BT = values(policy, rollout)
    difference_BT = now_BT - rollout.old_logprob_BT  # the reference is the policy that sampled
    with torch.no_grad():
        actual = {name: _divergences(policy, rollout, name) for name in ("k1", "k2", "k3")}
    torch.testing.assert_close(actual["k1"], difference_BT, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(actual["k2"], difference_BT**2 / 2, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(actual["k3"], torch.exp(-difference_BT) - 1 + difference_BT, rtol=1e-4, atol=1e-6)


def test_drift_is_zero_on_policy_and_the_closed_form_after_a_change() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=MEANS)
    with torch.no_grad():
        for evaluation in policy.evaluate(rollout, values=[DRIFT]):
            assert not evaluation.values[DRIFT].any()
    move(policy.trainable)
    drift_BT = next(policy.evaluate(rollout, values=[DRIFT])).values[DRIFT]
    # The first decision is taken in the initial noise: a second rollout has its mean under the current policy.
    again = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=MEANS)
    assert rollout.noise is not None
    for row, (old, new) in enumerate(zip(rollout.trace.transitions, again.trace.transitions, strict=True)):
        expected = ((new[0].mean - old[0].mean) ** 2).mean() / (2 * rollout.noise.std_BT[row, 0] ** 2)
        torch.testing.assert_close(drift_BT[row, 0].detach(), expected, rtol=1e-4, atol=1e-9)
    drift_BT.sum().backward()
    # SD3's last block throws its text stream away: the two factors on the queries of it reach nothing
    assert sum(p.grad is None or not bool(p.grad.any()) for p in policy.trainable) == 2


def test_gaussian_divergences_from_the_behavior_policy_equal_drift() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=MEANS)
    move(policy.trainable)
    assert rollout.noise is not None
    with torch.no_grad():
        kl_BT, no_dt_BT = (_divergences(policy, rollout, name) for name in ("gaussian", "gaussian_no_dt"))
        for evaluation in policy.evaluate(rollout, values=[DRIFT]):
            expected_BT = kl_BT[:, list(evaluation.columns)]
            torch.testing.assert_close(evaluation.values[DRIFT], expected_BT, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(no_dt_BT, kl_BT * rollout.noise.step_BT, rtol=1e-5, atol=1e-9)


def test_a_rollout_without_means_raises_for_drift() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    assert next(policy.evaluate(rollout)).values == {}
    with pytest.raises(ConfigError, match=r"stored no means for gaussian@old; add it to Plan\.values"):
        next(policy.evaluate(rollout, values=[DRIFT]))


@pytest.mark.first_case
@pytest.mark.parametrize(
    "value",
    [from_reference("kl"), from_reference("entropy"), ENTROPY, Value("gaussian"), Value("k3", OLD), Value("k3", "ema")],
    ids=str,
)
def test_unknown_values_raise_with_the_supported_ones(value: Value) -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    expected_message = (
        f"denoising steps have no value {value}; "
        "supported are of old: gaussian, gaussian_no_dt, velocity_mse; "
        "of reference: gaussian, gaussian_no_dt, k1, k2, k3, logprob, velocity_mse"
    )
    with pytest.raises(ConfigError, match=f"^{expected_message}$"):
        next(policy.evaluate(rollout, values=[value]))


def test_reference_log_probability_equals_that_before_training() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    move(policy.trainable, scale=0.2)
    value = Value("logprob", REFERENCE)
    for evaluation in policy.evaluate(rollout, values=[value, from_reference("k1")]):
        assert evaluation.rows is not None
        old_BT = rollout.old_logprob_BT[evaluation.rows[:, None], list(evaluation.columns)]
        assert not evaluation.values[value].requires_grad
        assert torch.equal(evaluation.values[value], old_BT)
        # k1 is the difference of the two; and one pass of the reference is enough for both
        assert torch.equal(evaluation.values[from_reference("k1")], evaluation.logprob_BT - old_BT)
        assert evaluation.num_forwards == 2 * len(evaluation.rows)


def test_noise_matches_the_schedule() -> None:
    # FlowMatchEuler with shift 3 and 4 steps: sigma = 1, .8571, .6007, .0089..., see its own table.
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    scheduler = policy.pipeline.scheduler.from_config(policy.pipeline.scheduler.config)
    scheduler.set_timesteps(4)
    sigmas = scheduler.sigmas
    assert rollout.noise is not None
    torch.testing.assert_close(rollout.noise.level_BT, sigmas[:-1].expand(2, 4))
    torch.testing.assert_close(rollout.noise.step_BT, (sigmas[:-1] - sigmas[1:]).expand(2, 4))
    safe = torch.minimum(sigmas[:-1], sigmas[1])
    std = 0.7 * (sigmas[:-1] / (1 - safe)).sqrt() * (sigmas[:-1] - sigmas[1:]).sqrt()
    std[-1] = 0.0
    torch.testing.assert_close(rollout.noise.std_BT, std.expand(2, 4))
    assert torch.equal(rollout.mask_BT, rollout.noise.std_BT > 0)


def test_segments_partition_the_steps() -> None:
    policy = policy_of("sd3", segments=(1, 3))
    rollout = policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    assert rollout.segment_BT.tolist() == [[0, 1, 1, 1]] * 2
    with pytest.raises(ConfigError, match=r"segments \(1, 2\) add up to 3 steps; the schedule has 4"):
        policy_of("sd3", segments=(1, 2)).rollout(prompts_of("sd3"), group_size=1, seed=SEED)


def test_masked_decisions_are_not_evaluated() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    masked = replace(rollout, mask_BT=rollout.mask_BT & (torch.arange(4) == 1))
    slices = list(policy.evaluate(masked))
    assert [tuple(evaluation.columns) for evaluation in slices] == [(1,)]
