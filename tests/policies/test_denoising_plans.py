"""Plans: members of a group, prompts, and settings of one rollout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.types import Continuation, Plan, Prompt, Rollout
from tests.policies.contract import gradients, move, relative_difference, sample_difference, values
from tests.policies.families import families
from tests.policies.tiny_policies import final_latent, measured_policy_of, policy_of, prompts_of
from tests.tiny.pipelines import PIPELINES

SEED = 3
NAMES = families("drawing", ["sd15", "sd3", "wan"])


def noise_of(rollout: Rollout, row: int) -> torch.Tensor:
    return rollout.trace.rows[row].noise((5,), iteration=1, ordinal=0)


@pytest.mark.each_value
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("same_initial_noise", [False, True])
def test_numbered_members_equal_those_of_the_complete_group(name: str, same_initial_noise: bool) -> None:
    policy, prompts = policy_of(name), prompts_of(name)[:1]
    window = (1, 2) if same_initial_noise else None
    full = policy.rollout(
        prompts, group_size=6, seed=SEED, plan=Plan(stochastic=window, same_initial_noise=same_initial_noise)
    )
    plan = Plan(members=((2, 5),), stochastic=window, same_initial_noise=same_initial_noise)
    some = policy.rollout(prompts, group_size=6, seed=SEED, plan=plan)
    assert [sample.member for sample in some.samples] == [2, 5]
    assert some.shape == (2, 4)
    for row, member in enumerate((2, 5)):
        assert torch.equal(noise_of(some, row), noise_of(full, member))
        scale = float(final_latent(full, member).abs().max())
        gap = float((final_latent(some, row) - final_latent(full, member)).abs().max())
        assert gap <= 1e-6 * max(scale, 1.0)
        assert sample_difference([some.samples[row]], [full.samples[member]]) <= 1
        rounding = 1e-4 if name == "sd15" else 1e-5
        torch.testing.assert_close(some.old_logprob_BT[row], full.old_logprob_BT[member], rtol=rounding, atol=rounding)


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [2, 8])
def test_ragged_groups_share_states_within_groups(batch: int) -> None:
    policy, prompts = policy_of("sd3", batch=batch), prompts_of("sd3")
    members, ids = ((4,), (0, 1, 2)), (7, 9)
    plan = Plan(members=members, prompt_ids=ids, stochastic=(1, 2), same_initial_noise=True)
    rollout = policy.rollout(prompts, group_size=3, seed=SEED, plan=plan)
    assert rollout.prompt_index_B.tolist() == [7, 9, 9, 9]
    assert [sample.member for sample in rollout.samples] == [4, 0, 1, 2]
    # Rows head their groups at 0 and 1; 4 steps a row; states up to decision 1 are the group's.
    assert rollout.state_BT.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 10, 11], [4, 5, 14, 15]]
    # Steps 0 and 1 run for the 2 groups, steps 2 and 3 for the 4 rows.
    assert rollout.num_forwards == 2 * 2 + 4 * 2
    torch.testing.assert_close(values(policy, rollout), rollout.old_logprob_BT, rtol=1e-6, atol=1e-6)
    apart = []
    for p in (0, 1):
        group_plan = replace(plan, members=members[p : p + 1], prompt_ids=ids[p : p + 1])
        apart.append(policy.rollout(prompts[p : p + 1], group_size=1, seed=SEED, plan=group_plan))
    for row, (p, r) in enumerate([(0, 0), (1, 0), (1, 1), (1, 2)]):
        torch.testing.assert_close(rollout.old_logprob_BT[row], apart[p].old_logprob_BT[r], rtol=1e-5, atol=1e-5)


def test_two_prompts_of_one_id_are_one_group_on_one_noise() -> None:
    policy = measured_policy_of("sd3")
    prompts = [Prompt("a red fox"), Prompt("a red fox in the snow"), Prompt("two dogs")]
    plan = Plan(members=((0, 2), (1,), (0,)), prompt_ids=(5, 5, 6), stochastic=(1, 2), same_initial_noise=True)
    rollout = policy.rollout(prompts, group_size=4, seed=SEED, plan=plan)
    assert rollout.prompt_index_B.tolist() == [5, 5, 5, 6]
    assert [sample.prompt.text for sample in rollout.samples] == [prompts[p].text for p in (0, 0, 1, 2)]
    assert [sample.member for sample in rollout.samples] == [0, 2, 1, 0]
    # The second prompt starts from the group's noise, and its state is its own: what the network sees differs.
    noises = [row.generator().initial_seed() for row in rollout.trace.rows]
    assert noises[0] == noises[1] == noises[2] != noises[3]
    assert rollout.state_BT[:, 0].tolist() == [0, 0, 8, 12]
    torch.testing.assert_close(values(policy, rollout), rollout.old_logprob_BT, rtol=1e-6, atol=1e-6)


def test_duplicate_members_raise() -> None:
    policy = measured_policy_of("sd3")
    with pytest.raises(DataError, match=r"unique within a group; duplicate \(id, member\): \[\(5, 1\)\]"):
        policy.rollout(prompts_of("sd3"), group_size=2, seed=0, plan=Plan(prompt_ids=(5, 5), members=((0, 1), (1, 2))))
    with pytest.raises(DataError, match=r"members is for 1 prompts"):
        policy.rollout(prompts_of("sd3"), group_size=2, seed=0, plan=Plan(members=((0, 1),)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "wan"]))
def test_rollout_settings_are_used_in_scoring(name: str) -> None:
    policy = policy_of(name)
    result = policy.rollout(prompts_of(name), group_size=2, seed=SEED)
    plan = Plan(settings={"strength": 0.3, "call": {"num_inference_steps": 3}})
    rollout = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=plan)
    assert (result.shape, rollout.shape) == ((4, 4), (4, 3))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert result.noise is not None
    assert rollout.noise is not None
    weaker = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=Plan(settings={"strength": 0.35}))
    assert weaker.noise is not None
    if name != "sd15":  # of flow_sde's steps the std is proportional to the strength: 0.35 is half of 0.7
        torch.testing.assert_close(weaker.noise.std_BT, 0.5 * result.noise.std_BT)
    move(policy.trainable)
    fresh = policy_of(name, strength=0.3, call={"num_inference_steps": 3})
    move(fresh.trainable)
    expected = fresh.rollout(prompts_of(name), group_size=2, seed=SEED)
    actual = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=plan)
    assert torch.equal(actual.old_logprob_BT, expected.old_logprob_BT)
    assert relative_difference(gradients(policy, actual), gradients(fresh, expected)) == 0
    again = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=Plan())
    assert again.shape == (4, 4)  # the plan leaves no trace


def test_rollout_settings_apply_to_deterministic_samples() -> None:
    policy = policy_of("sd3", evaluation_call={"num_inference_steps": 5})
    plan = Plan(stochastic=(), settings={"call": {"num_inference_steps": 2, "height": 32}})
    rollout = policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED, plan=plan)
    assert rollout.shape[1] == 2
    assert [np.asarray(sample.image).shape for sample in rollout.samples] == [(32, 16, 3)] * 2


@pytest.mark.nightly
def test_a_plan_can_override_the_sampler() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(
        prompts_of("sd3"), group_size=2, seed=SEED, plan=Plan(settings={"sampler": "cps", "strength": 0.8})
    )
    fresh = policy_of("sd3", **{"sampler": "cps", "strength": 0.8}).rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    assert torch.equal(rollout.old_logprob_BT, fresh.old_logprob_BT)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 1.0}, "are call, sampler, strength; got temperature"),
        ({"strength": -1}, "strength must be a number of at least 0, got -1"),
        ({"sampler": "euler"}, "unknown sampler 'euler'; use one of"),
        ({"call": 3}, "call must map argument names to values"),
        ({"call": {"steps": 3}}, "the pipeline's call has no argument steps"),
    ],
)
def test_invalid_plan_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measured_policy_of("sd3").rollout(prompts_of("sd3"), group_size=1, seed=0, plan=Plan(settings=settings))


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "wan"]))
@pytest.mark.parametrize("stochastic", [None, (), (1,)])
def test_latents_are_stored_if_the_plan_requests_them(name: str, stochastic: tuple[int, ...] | None) -> None:
    policy = policy_of(name)
    plain = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=Plan(stochastic=stochastic))
    assert all(sample.latent is None for sample in plain.samples)
    plan = Plan(stochastic=stochastic, keep_latents=True)
    rollout = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=plan)
    latents = [sample.latent for sample in rollout.samples if sample.latent is not None]
    assert [len(latent) for latent in latents] == [1] * 4
    assert not torch.equal(latents[0], latents[1])
    if stochastic != ():
        assert all(torch.equal(latent, final_latent(rollout, row)) for row, latent in enumerate(latents))
    decode = policy.pipeline.vae.decode  # what is decoded is what was kept, in the pipeline's own way
    if name == "sd3":
        config = policy.pipeline.vae.config
        with torch.no_grad():
            pixels = decode(latents[1] / config.scaling_factor + config.shift_factor).sample
        image = policy.pipeline.image_processor.postprocess(pixels)[0]
        assert np.abs(np.asarray(image, dtype=float) - np.asarray(rollout.samples[1].image, dtype=float)).max() <= 1


def test_text_only_plan_features_raise() -> None:
    policy, prompts = measured_policy_of("sd3"), prompts_of("sd3")[:1]
    for plan in (Plan(environment=dict), Plan(continues=(Continuation([1]),))):
        with pytest.raises(PolicyError, match="support neither multi-turn rollouts nor prefixes"):
            policy.rollout(prompts, group_size=2, seed=SEED, plan=plan)
    with pytest.raises(PolicyError, match=r"Plan.continues, Plan.token_window, Plan.lookahead and Prompt.prefix"):
        policy.rollout([replace(prompts[0], prefix="a")], group_size=2, seed=SEED)


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("same_initial_noise", [False, True])
def test_a_fast_remainder_is_shorter_and_changes_no_decision(order: int, same_initial_noise: bool) -> None:
    plan = Plan(stochastic=(1, 2), same_initial_noise=same_initial_noise)
    call = {**PIPELINES["sd3"].call, "num_inference_steps": 12}
    full = policy_of("sd3", call={**call, "sigmas": [1 - i / 12 for i in range(12)]}).rollout(
        prompts_of("sd3"), group_size=2, seed=SEED, plan=plan
    )
    policy = policy_of("sd3", call=call, fast_remainder={"frac": 0.4, "order": order})
    short = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=plan)
    assert short.shape == (4, 6)  # 3 steps, and int((12 - 2) * 0.4) = 4 points, the last of which is the end
    torch.testing.assert_close(short.old_logprob_BT[:, :3], full.old_logprob_BT[:, :3], rtol=1e-6, atol=1e-6)
    for row in range(4):
        torch.testing.assert_close(
            short.trace.transitions[row][2].next_state, full.trace.transitions[row][2].next_state
        )
    torch.testing.assert_close(values(policy, short), short.old_logprob_BT, rtol=1e-6, atol=1e-6)
    trained = gradients(policy, short)
    assert any(float(gradient.abs().max()) > 0 for gradient in trained)


def test_a_second_order_remainder_equals_the_multistep_solver() -> None:
    """x' = (sigma' / sigma) x - alpha' (exp(-h) - 1) (D0 + D1 / 2), D1 = (x0 - x0 before) h / h before: MixGRPO."""
    call = {**PIPELINES["sd3"].call, "num_inference_steps": 12}
    policy, calls = policy_of("sd3", call=call, fast_remainder={"frac": 0.6}), []
    hook = policy.pipeline.transformer.register_forward_hook(
        lambda module, args, kwargs, output: calls.append((kwargs["hidden_states"].double(), output[0].double())),
        with_kwargs=True,
    )
    plan = Plan(stochastic=(1, 2))
    rollout = policy.rollout(prompts_of("sd3")[:1], group_size=1, seed=SEED, plan=plan)
    hook.remove()
    assert rollout.shape == (1, 8)  # 3 steps, and int((12 - 2) * 0.6) = 6 points, the last of which is the end
    states, velocities = zip(*calls[:8], strict=True)
    assert rollout.noise is not None
    sigmas = rollout.noise.level_BT[0].double()
    cleans = [x - sigma * v for x, sigma, v in zip(states, sigmas, velocities, strict=True)]
    snr = ((1 - sigmas) / sigmas).log()
    for i in range(3, 7):
        h, h_before = snr[i + 1] - snr[i], snr[i] - snr[i - 1]
        slope = (cleans[i] - cleans[i - 1]) * h / h_before
        change = (1 - sigmas[i + 1]) * ((-h).exp() - 1) * (cleans[i] + slope / 2)
        expected = sigmas[i + 1] / sigmas[i] * states[i] - change
        torch.testing.assert_close(states[i + 1], expected, rtol=1e-4, atol=1e-5)
        assert float((slope / 2 * ((-h).exp() - 1)).abs().max()) > 1e-3  # which one of first order lacks
    torch.testing.assert_close(final_latent(rollout).double(), cleans[7], rtol=1e-4, atol=1e-5)


def test_a_fast_remainder_needs_sigmas() -> None:
    policy = policy_of("sd15", fast_remainder={"frac": 0.5})
    with pytest.raises(ConfigError, match=r"policy\.fast_remainder .* sigmas"):
        policy.rollout(prompts_of("sd15"), group_size=2, seed=SEED, plan=Plan(stochastic=(0,)))
