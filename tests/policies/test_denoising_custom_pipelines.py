"""Custom pipelines: they work, or raise an error with the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from torch import Tensor

from mmgrpo.errors import ConfigError, PolicyError, ReplayError
from mmgrpo.policy import Policy
from mmgrpo.types import Plan, Prompt, Rollout
from mmgrpo.values import DRIFT
from tests.policies import contract, foreign_pipelines
from tests.policies.contract import Subject, move, values

PROMPTS = [Prompt("short"), Prompt("a longer one")]
STRENGTH = 0.7


def _policy(pipeline: Any = None, **settings: Any) -> DenoisingPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lora = {"rank": 2, "alpha": 2.0, "targets": ("inner", "outer")}
        return DenoisingPolicy(pipeline or foreign_pipelines.build(), {"lora": lora, "strength": STRENGTH, **settings})


@pytest.fixture
def subject() -> Subject:
    def parameters_of(policy: Policy) -> list[torch.nn.Parameter]:
        assert isinstance(policy, DenoisingPolicy)
        return list(policy.pipeline.net.parameters())

    return Subject(
        make=lambda batch: _policy(rollout_batch=batch, update_batch=batch),
        parameters=parameters_of,
        prompts=PROMPTS,
    )


@pytest.mark.nightly
def test_a_custom_pipeline_satisfies_the_contract(subject: Subject, tmp_path: Any) -> None:
    contract.check_on_policy_gap(subject)
    contract.check_on_policy_gap(subject, Plan(stochastic=(1,), same_initial_noise=True))
    contract.check_every_decision_once(subject)
    contract.check_rows_and_batches(subject)
    contract.check_seeds(subject)
    contract.check_prompt_ids(subject)
    contract.check_emitted_samples(subject)
    contract.check_reference(subject)
    contract.check_save_and_load(subject, tmp_path)
    contract.check_gradients(subject)


def test_log_probabilities_match_a_manual_computation() -> None:
    policy = _policy()
    rollout = policy.rollout(PROMPTS, group_size=2, seed=3)
    untrained_BT = values(policy, rollout)
    for seed in (5, 6):
        move(policy.trainable, seed=seed)
        result_BT = values(policy, rollout)
        assert (result_BT - untrained_BT)[rollout.mask_BT].abs().min() > 0
        torch.testing.assert_close(result_BT, _by_hand(policy, rollout), rtol=1e-5, atol=1e-5)


def _by_hand(policy: DenoisingPolicy, rollout: Rollout) -> Tensor:
    """Flow-GRPO's density, step by step, from the network alone.

    FlowMatchEuler with shift 3 spaces 1000 sigma from 1 to 3 * 0.001 / (1 + 2 * 0.001), then shifts them once more:
    4 steps at u = 1, .667, .334, .001 (of 1000 training steps) become 3 u / (1 + 2 u).
    """
    last = 3 * 0.001 / (1 + 2 * 0.001)
    levels = [1 + (last - 1) * k / 3 for k in range(4)]
    sigmas = [3 * u / (1 + 2 * u) for u in levels] + [0.0]
    rows, net = rollout.trace.rows, policy.pipeline.net
    code_B = foreign_pipelines.codes([row.prompt.text for row in rows])
    state = torch.cat([torch.randn(1, 4, generator=row.generator()) for row in rows])
    result_BT = torch.zeros(rollout.shape)
    for t in range(3):
        sigma, h = sigmas[t], sigmas[t] - sigmas[t + 1]
        with torch.no_grad():
            velocity = net(state, torch.full((len(rows),), sigma), code_B)
        s2 = STRENGTH**2 * sigma / (1 - min(sigma, sigmas[1]))
        mean = state * (1 - s2 * h / (2 * sigma)) - velocity * (1 + s2 * (1 - sigma) / (2 * sigma)) * h
        std = math.sqrt(s2 * h)
        state = torch.cat([transitions[t].next_state for transitions in rollout.trace.transitions])
        density = -((state - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)
        result_BT[:, t] = density.mean(1)
    return result_BT


def test_noise_is_a_function_of_the_row() -> None:
    rollout = _policy(strength=0.0).rollout(PROMPTS, group_size=1, seed=3)
    row = DenoisingRow(prompt=PROMPTS[1], seed=3, group=1, member=0, entry=1)
    assert rollout.trace.rows[1] == row
    assert not rollout.mask_BT.any()


@pytest.mark.parametrize(
    ("kind", "num_elements"),
    [("FieldPipeline", 4), ("CastingPipeline", 4), ("ScalingPipeline", 4), ("PaintingPipeline", 3)],
)
def test_elements_overwritten_by_the_pipeline_are_excluded(kind: str, num_elements: int) -> None:
    policy = _policy(foreign_pipelines.build(getattr(foreign_pipelines, kind)))
    rollout = policy.rollout(PROMPTS, group_size=2, seed=3, plan=Plan(values=(DRIFT,)))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert rollout.noise is not None
    for row, transitions in enumerate(rollout.trace.transitions):
        for t, transition in enumerate(transitions[:3]):
            std = rollout.noise.std_BT[row, t]
            error = (transition.next_state - transition.mean)[0, :num_elements]
            expected = (-(error**2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)).mean()
            assert float(rollout.old_logprob_BT[row, t]) == pytest.approx(float(expected), rel=1e-5)


def test_a_pipeline_with_momentum_needs_full_replay() -> None:
    policy = _policy(foreign_pipelines.build(foreign_pipelines.MomentumPipeline))
    rollout = policy.rollout(PROMPTS, group_size=2, seed=3)
    assert rollout.trace.run_ghosts
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    slices = list(policy.evaluate(rollout))
    assert [evaluation.num_forwards for evaluation in slices] == [4, 8, 12]  # the steps before run as well
    assert not _policy().rollout(PROMPTS, group_size=2, seed=3).trace.run_ghosts


def test_a_pipeline_with_hidden_randomness_raises() -> None:
    policy = _policy(foreign_pipelines.build(foreign_pipelines.RandomPipeline))
    with pytest.raises(ReplayError, match=r"replaying step 0 of RandomPipeline changes its log-probability"):
        policy.rollout(PROMPTS, group_size=2, seed=3)


def test_a_pipeline_that_denoises_without_grad_raises() -> None:
    policy = _policy(foreign_pipelines.build(foreign_pipelines.DetachedPipeline))
    rollout = policy.rollout(PROMPTS, group_size=2, seed=3)
    with pytest.raises(PolicyError, match=r"step 0 of DetachedPipeline has no gradient"):
        next(policy.evaluate(rollout))


def test_a_frozen_module_of_the_loop_returns_zeros_in_ghosts() -> None:
    guide = foreign_pipelines.Guide()
    pipeline = foreign_pipelines.build(foreign_pipelines.GuidedPipeline, guide=guide)
    policy = _policy(pipeline, denoisers=("net",))
    rollout = policy.rollout(PROMPTS, group_size=2, seed=3)
    guide.num_calls = 0
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert guide.num_calls == 3  # one a decision
    assert all(parameter.grad is None for parameter in guide.parameters())


def test_a_plain_module_supports_full_fine_tuning_and_restore(tmp_path: Any) -> None:
    policy, other = _policy(lora=None), _policy(lora=None)
    rollout = policy.rollout(PROMPTS, group_size=2, seed=3)
    with policy.reference():
        assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    move(policy.trainable)
    policy.save(tmp_path)
    other.load(tmp_path)
    assert torch.equal(values(other, rollout), values(policy, rollout))
    with other.reference():
        assert torch.equal(values(other, rollout), rollout.old_logprob_BT)


def test_denoisers_that_do_not_denoise_raise() -> None:
    with pytest.raises(ConfigError, match=r"denoisers \['unet'\] are not components.*\['net'\]"):
        _policy(denoisers=("unet",))


def test_lora_targets_without_matches_list_the_layers() -> None:
    with pytest.raises(ConfigError, match=r"match no module of net \(Net\); its linear layers end in: inner, outer"):
        _policy(lora={"rank": 2, "targets": ("to_q", "to_k")})
