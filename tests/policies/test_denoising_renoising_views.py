"""Renoised samples under other weights: divergences, and the implied errors of DiffusionNFT."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.types import Plan, Rollout
from mmgrpo.values import OLD, Value
from tests.policies.contract import move, values
from tests.policies.families import families
from tests.policies.readings import (
    READING,
    SEED,
    Hand,
    T,
    latents_of,
    value_of,
)
from tests.policies.tiny_policies import measured_policy_of, policy_of


@pytest.mark.nightly
@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "wan"]))
def test_values_of_stored_weights_use_the_same_levels_and_noise(name: str) -> None:
    policy = measured_policy_of(name, reading=READING)
    rollout = policy.read(latents_of(policy), seed=SEED)
    first_BT = values(policy, rollout)
    move(policy.trainable)
    policy.weights.store("now")
    for what in ("velocity_mse", "k1", "k2", "k3"):
        assert not value_of(policy, rollout, Value(what, "now")).any()
        assert value_of(policy, rollout, Value(what, "reference")).abs().max() > 1e-9
    assert torch.equal(value_of(policy, rollout, Value("logprob", "now")), values(policy, rollout))
    assert torch.equal(value_of(policy, rollout, Value("logprob", "reference")), first_BT)
    spent = [e.num_forwards for e in policy.evaluate(rollout, values=[Value("k1", "now"), Value("k3", "reference")])]
    assert sum(spent) == 3 * 4 * T


NFT = [Value(f"{sign}_error", "kept", (b,)) for b in (1.0, 0.1) for sign in ("positive", "negative")]


@pytest.mark.nightly
@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd15-v", "sd3", "flux", "wan"]))
def test_implied_errors_are_equal_at_the_stored_weights(name: str) -> None:
    policy = policy_of(name, reading={**READING, "low": 0.1})
    rollout = policy.read(latents_of(policy), seed=SEED)
    move(policy.trainable)
    policy.weights.store("kept")
    for better, worse in (NFT[:2], NFT[2:]):
        positive_BT, negative_BT = value_of(policy, rollout, better), value_of(policy, rollout, worse)
        torch.testing.assert_close(positive_BT, negative_BT, rtol=1e-4, atol=1e-6)
        assert bool((positive_BT > 0).all())
        # d (r e+ + (1 - r) e-) = (2 r - 1) d e+ there: 0.5 at r = 0.75, nothing at 0.5
        parts = [_gradient(policy, rollout, {better: r, worse: 1 - r}) for r in (1.0, 0.75, 0.5)]
        torch.testing.assert_close(parts[1], 0.5 * parts[0], rtol=1e-3, atol=1e-4 * float(parts[0].abs().max()))
        assert float(parts[2].norm()) < 1e-3 * float(parts[0].norm())


def _gradient(policy: DenoisingPolicy, rollout: Rollout, weights: dict[Value, float]) -> Tensor:
    for parameter in policy.trainable:
        parameter.grad = None
    for part in policy.evaluate(rollout, values=list(weights)):
        torch.stack([weight * part.values[value].sum() for value, weight in weights.items()]).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.trainable if p.grad is not None])


@pytest.mark.nightly
@pytest.mark.parametrize("view", ["kept", OLD])
def test_implied_errors_match_the_paper_on_flow(view: str) -> None:
    policy = measured_policy_of("sd3", reading=READING)
    move(policy.trainable)
    policy.weights.store("kept")
    requested = [replace(value, view=view) for value in NFT]
    samples = latents_of(policy)
    rollout = policy.read(samples, seed=SEED, plan=Plan(values=tuple(requested)))
    hand = Hand("sd3", policy)
    cells = [(row, position) for row in range(4) for position in range(T)]

    def velocities() -> dict[tuple[int, int], Tensor]:
        actual = {}
        for row, position in cells:
            sample = samples[row].sample
            assert sample.latent is not None
            noisy, _, share, _ = hand.noised(sample.latent, sample.group, sample.member, position)
            with torch.no_grad():
                actual[row, position] = hand.prediction(sample.prompt.text, noisy, share)
        return actual

    old = velocities()
    move(policy.trainable, scale=0.3, seed=8)
    now = velocities()
    actual = {value: value_of(policy, rollout, value) for value in requested}
    for row, position in cells:
        sample = samples[row].sample
        clean = sample.latent
        assert clean is not None
        noisy, _, t, _ = hand.noised(clean, sample.group, sample.member, position)
        v, v_old = now[row, position], old[row, position]
        for value in requested:
            (b,) = value.numbers
            mixed = b * v + (1 - b) * v_old if value.name == "positive_error" else (1 + b) * v_old - b * v
            error = noisy - t * mixed - clean
            expected = float(error.square().mean() / error.abs().mean())
            assert float(actual[value][row, position]) == pytest.approx(expected, rel=1e-4)
    assert not torch.allclose(actual[requested[0]], actual[requested[1]], rtol=1e-2)


def test_old_predictions_are_stored_if_the_plan_requests_them() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    rollout = policy.read(samples, seed=SEED, plan=Plan(values=(Value("velocity_mse", OLD),)))
    assert not value_of(policy, rollout, Value("velocity_mse", OLD)).any()
    move(policy.trainable)
    assert bool((value_of(policy, rollout, Value("velocity_mse", OLD)) > 0).all())
    torch.testing.assert_close(value_of(policy, rollout, Value("logprob", OLD)), rollout.old_logprob_BT)
    plain = policy.read(samples, seed=SEED)
    with pytest.raises(ConfigError, match="predictions of the old policy are not stored"):
        value_of(policy, plain, Value("velocity_mse", OLD))
