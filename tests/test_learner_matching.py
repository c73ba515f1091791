"""Terms on prediction errors through the learner: samples are read, and a policy moves to the better of them."""

from __future__ import annotations

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.surrogates import policy_gradient
from mmgrpo.maths.terms import Term, weighted
from mmgrpo.maths.terms.divergence_terms import divergence
from mmgrpo.methods.group_losses.dgpo import dgpo
from mmgrpo.methods.sampling.diffusion_nft import diffusion_nft
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Plan, Rollout
from mmgrpo.values import Value
from tests.policies.contract import move
from tests.policies.readings import READING, SEED, latents_of, value_of
from tests.policies.tiny_policies import measured_policy_of

ADVANTAGE_B = torch.tensor([1.0, -1.0, 0.5, -0.5])
ERROR = Value("error")


def read(policy: DenoisingPolicy, term: Term) -> Rollout:
    return policy.read(latents_of(policy), seed=SEED, plan=Plan(values=term.values, same_initial_noise=True))


def gradient(policy: DenoisingPolicy, rollout: Rollout, objective: Objective, parts: list[list[int]]) -> Tensor:
    totals = count(rollout.mask_BT, group_B=rollout.prompt_index_B)
    advantage_BT = ADVANTAGE_B[:, None].expand(rollout.shape)
    for rows in parts:
        accumulate_gradient(policy, rollout, advantage_BT, objective, rows=rows, totals=totals)
    flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return torch.cat(flat)


def relative(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def objective_of(term: Term) -> Objective:
    return Objective(surrogate=None, aggregate=sequence_mean, further=(term,))


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("name", ["sd3", "sd15"])
@pytest.mark.parametrize("term", [diffusion_nft(), dgpo(beta=10.0)], ids=["diffusion_nft", "dgpo"])
def test_better_samples_are_predicted_better_after_a_step(name: str, term: Term) -> None:
    policy = measured_policy_of(name, reading=READING)
    with policy.reference():  # a full fine-tune's reference is what the weights are now
        pass
    rollout, objective = read(policy, term), objective_of(term)
    before_BT = value_of(policy, rollout, ERROR)
    result = gradient(policy, rollout, objective, [[0, 1, 2, 3]])
    assert result.norm() > 0
    assert relative(gradient(policy, rollout, objective, [[2, 3], [0, 1]]), result) < 1e-4
    offset, size = 0, 1e-3 / float(result.norm())
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter -= size * result[offset : offset + parameter.numel()].reshape(parameter.shape)
            offset += parameter.numel()
    change_BT = value_of(policy, rollout, ERROR) - before_BT
    assert float((ADVANTAGE_B[:, None] * change_BT).sum()) < 0


@pytest.mark.nightly
def test_dgpo_at_the_reference_is_half_the_policy_gradient_of_minus_the_error() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    with policy.reference():
        pass
    rollout = read(policy, dgpo())
    plain = gradient(policy, rollout, Objective(surrogate=policy_gradient, aggregate=sequence_mean), [[0, 1, 2, 3]])
    assert relative(gradient(policy, rollout, objective_of(dgpo()), [[0, 1, 2, 3]]), plain / 2) < 1e-4


@pytest.mark.nightly
def test_an_added_divergence_is_zero_until_the_weights_move() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    with policy.reference():
        pass
    term = weighted(divergence(form="velocity_mse", view="reference"), 1.0)
    rollout = read(policy, diffusion_nft())
    objective = Objective(surrogate=None, aggregate=sequence_mean, further=(diffusion_nft(), term))
    at_rest = gradient(policy, rollout, objective, [[0, 1, 2, 3]])
    assert relative(at_rest, gradient(policy, rollout, objective_of(diffusion_nft()), [[0, 1, 2, 3]])) < 1e-5
    move(policy.trainable)
    away = gradient(policy, rollout.aged(), objective, [[0, 1, 2, 3]])
    assert relative(away, gradient(policy, rollout.aged(), objective_of(diffusion_nft()), [[0, 1, 2, 3]])) > 1e-2
