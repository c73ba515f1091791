"""Updates on finished samples that are read at noise levels: AWM, DiffusionNFT, DGPO."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.terms import Term
from mmgrpo.methods.group_losses.dgpo import dgpo
from mmgrpo.methods.sampling.diffusion_nft import diffusion_nft
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import OffPolicySample, Plan, Rollout, Source
from mmgrpo.values import Value
from tests.policies.families import daily
from tests.test_learner import CLIPPED, PROMPTS, disturb, full_graph, make_policy, relative, streamed

ALL = [0, 1, 2, 3]
AWM = Objective(surrogate=CLIPPED, aggregate=sequence_mean, divergence="velocity_mse", kl_beta=0.3)


def alone(term: Term) -> Objective:
    return Objective(surrogate=None, aggregate=sequence_mean, further=(term,))


OBJECTIVES = {
    "awm": AWM,
    "awm of whole samples": replace(AWM, ratio_level="sequence"),
    "diffusion nft": alone(diffusion_nft(strength=0.5)),
    "diffusion nft against an average": alone(diffusion_nft(view="average")),
    "dgpo": alone(dgpo(beta=10.0)),
}


def read(policy: DenoisingPolicy, objective: Objective) -> Rollout:
    """The final latents of two groups, sampled without noise, read at three levels for each group."""
    rollout = policy.rollout(PROMPTS, group_size=2, seed=11, plan=Plan(stochastic=(), keep_latents=True))
    off_policy_samples = [OffPolicySample(sample=sample, source=Source.ON_POLICY) for sample in rollout.samples]
    return policy.read(off_policy_samples, seed=11, plan=Plan(same_initial_noise=True, values=tuple(objective.values)))


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", daily(OBJECTIVES, "awm of whole samples", "diffusion nft against an average"))
@pytest.mark.parametrize("update_batch", [2, pytest.param(12, marks=pytest.mark.nightly)])
def test_streamed_gradient_is_the_full_graphs(name: str, update_batch: int) -> None:
    policy, objective = make_policy(reading={"num_levels": 3}, update_batch=update_batch), OBJECTIVES[name]
    with policy.reference():  # a full fine-tune's reference is what the weights are now
        pass
    policy.weights.store("average")
    rollout = read(policy, objective)
    assert rollout.on_policy
    disturb(policy)
    expected, full = full_graph(policy, rollout, objective)
    assert full.norm() > 0
    value, result = streamed(policy, rollout.aged(), objective, parts=[ALL])
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(result, full) < 3e-5
    value, result = streamed(policy, rollout.aged(), objective, parts=[[0, 1], [2, 3]])
    assert relative(result, full) < 3e-5


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["awm", "diffusion nft", "dgpo"], "dgpo"))
def test_good_samples_are_predicted_better_and_bad_ones_worse(name: str) -> None:
    policy, objective = make_policy(reading={"num_levels": 3}), OBJECTIVES[name]
    with policy.reference():
        pass
    rollout = read(policy, objective)
    advantage_B = torch.tensor([1.0, -1.0, 1.0, -1.0])
    before_B = errors(policy, rollout)
    optimizer = torch.optim.SGD(policy.trainable, lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        accumulate_gradient(
            policy,
            rollout,
            advantage_B[:, None].expand(rollout.shape),
            objective,
            rows=ALL,
            totals=count(rollout.mask_BT),
        )
        optimizer.step()
        rollout = rollout.aged()
    change_B = errors(policy, rollout) - before_B
    assert float((change_B * advantage_B).sum()) < 0


@torch.no_grad()
def errors(policy: DenoisingPolicy, rollout: Rollout) -> Tensor:
    """Mean error of each sample."""
    result_BT = torch.zeros(rollout.shape)
    for part in policy.evaluate(rollout, values=[Value("error")]):
        assert part.rows is not None
        result_BT[part.rows[:, None], torch.tensor(list(part.columns))[None]] = part.values[Value("error")]
    return result_BT.mean(1)
