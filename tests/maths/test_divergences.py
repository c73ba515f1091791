"""Divergences against exact expectations, closed forms and the numbers of the released codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ShapeError
from mmgrpo.maths.divergences import (
    GAUSSIAN_DIVERGENCES,
    LOGPROB_DIVERGENCES,
    Moments,
    gaussian,
    gaussian_no_dt,
    k1,
    k2,
    k3,
    velocity_mse,
)
from mmgrpo.maths.gaussian import gaussian_logdensity

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64)
OTHER_LOGITS = torch.tensor([0.1, -0.4, 0.2, 0.5], dtype=torch.float64)

OLD_MEAN = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
NEW_MEAN = OLD_MEAN + torch.tensor([0.01, 0.02, -0.01, 0.0], dtype=torch.float64)
STEP, STD = 0.25, 0.4  # s = 0.8, sqrt(h) = 0.5


def moments(mean: Tensor, velocity: Tensor = OLD_MEAN) -> Moments:
    return Moments(mean=mean, velocity=velocity, std=STD, step=STEP)


def test_log_prob_divergences_by_hand() -> None:
    logprob, other = torch.tensor([-1.0, -2.0], dtype=torch.float64), torch.tensor([-1.5, -1.0], dtype=torch.float64)
    # d = other - logprob = (-0.5, 1): e^-0.5 - 1 + 0.5 = 0.1065306597, e - 2 = 0.7182818285
    expected = {"k1": [0.5, -1.0], "k2": [0.125, 0.5], "k3": [0.1065306597, 0.7182818285]}
    for name, values in expected.items():
        actual = LOGPROB_DIVERGENCES[name](logprob, other)
        torch.testing.assert_close(actual, torch.tensor(values, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_estimators_are_unbiased(estimator) -> None:
    """The expectation over a categorical policy, summed exactly."""
    logprob, other = LOGITS.log_softmax(0), OTHER_LOGITS.log_softmax(0)
    exact = (logprob.exp() * (logprob - other)).sum()
    torch.testing.assert_close((logprob.exp() * estimator(logprob, other)).sum(), exact, rtol=0, atol=1e-14)


def test_gradients_from_samples_of_the_other_policy_equal_its_divergence() -> None:
    """DPH-RL: k3 of the other over the policy and minus the log-probability, over the other's samples."""
    logits = LOGITS.clone().requires_grad_()
    logprob, other = logits.log_softmax(0), OTHER_LOGITS.log_softmax(0)
    divergence, surrogate = (other.exp() * k3(other, logprob)).sum(), (other.exp() * -logprob).sum()
    torch.testing.assert_close(grad(divergence, logits), grad(surrogate, logits), rtol=0, atol=1e-14)


def test_gradients_of_the_estimators_in_expectation() -> None:
    """As loss terms on the policy's samples: k1 does nothing, k2 descends KL(policy||other), k3 KL(other||policy)."""
    logits = LOGITS.clone().requires_grad_()
    logprob, other = logits.log_softmax(0), OTHER_LOGITS.log_softmax(0)
    weight = logprob.exp().detach()
    forward_kl, reverse_kl = (logprob.exp() * (logprob - other)).sum(), (other.exp() * (other - logprob)).sum()
    expected = {k1: torch.zeros_like(LOGITS), k2: grad(forward_kl, logits), k3: grad(reverse_kl, logits)}
    for estimator, gradient in expected.items():
        actual = grad((weight * estimator(logprob, other)).sum(), logits)
        torch.testing.assert_close(actual, gradient, rtol=0, atol=1e-14)


def grad(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value, leaf, retain_graph=True)[0]


def test_k3_keeps_its_digits_near_equality() -> None:
    """d = 1e-4 in float32: exp(d) - 1 - d loses all digits of d^2 / 2 = 5e-9, expm1 keeps it positive and near."""
    logprob = torch.tensor([-1.0]), torch.tensor([-1.0 + 1e-4])
    assert k3(*logprob).item() == pytest.approx(5e-9, rel=0.01)


def test_golden_gaussian_divergences() -> None:
    now, other = moments(NEW_MEAN), moments(OLD_MEAN)
    assert gaussian(now, other).mean().item() == pytest.approx(4.6875e-4, abs=1e-12)
    assert gaussian_no_dt(now, other).mean().item() == pytest.approx(1.171875e-4, abs=1e-12)
    # velocities differ by (0.01, 0.02, -0.01, 0): mean square 6e-4 / 4
    assert velocity_mse(moments(NEW_MEAN, NEW_MEAN), other).mean().item() == pytest.approx(1.5e-4, abs=1e-12)


@pytest.mark.parametrize("std", [0.4, torch.tensor([0.1, 0.4, 1.0, 2.5], dtype=torch.float64)])
def test_gaussian_is_the_closed_form_kl(std: float | Tensor) -> None:
    now = Moments(mean=NEW_MEAN, velocity=OLD_MEAN, std=std, step=STEP)
    other = Moments(mean=OLD_MEAN, velocity=OLD_MEAN, std=std, step=STEP)
    normal, other_normal = (torch.distributions.Normal(mean, std) for mean in (NEW_MEAN, OLD_MEAN))
    exact = torch.distributions.kl_divergence(normal, other_normal)
    torch.testing.assert_close(gaussian(now, other), exact, rtol=0, atol=1e-12)


def test_drift_recenters_the_log_ratio() -> None:
    """E[log-ratio + KL] = 0 over the sampling policy's noise; 10^6 draws, std of the log-ratio |0.3| / 0.4 = 0.75."""
    generator = torch.Generator().manual_seed(13)
    old = torch.zeros(1_000_000, dtype=torch.float64)
    new = old + 0.3
    sample = old + STD * torch.randn(old.shape, dtype=torch.float64, generator=generator)
    log_ratio = gaussian_logdensity(sample, new, STD) - gaussian_logdensity(sample, old, STD)
    drift = gaussian(moments(new), moments(old))
    assert (drift >= 0).all()
    # uncorrected the mean is -0.28125; the standard error is 0.00075
    assert log_ratio.mean().item() == pytest.approx(-0.28125, abs=0.004)
    assert (log_ratio + drift).mean().item() == pytest.approx(0.0, abs=0.004)


@pytest.mark.parametrize("name", GAUSSIAN_DIVERGENCES)
def test_gaussian_divergences_vanish_with_their_gradient_at_equality_and_differentiate(name: str) -> None:
    def divergence(mean: Tensor, velocity: Tensor) -> Tensor:
        return GAUSSIAN_DIVERGENCES[name](moments(mean, velocity), moments(OLD_MEAN))

    same = (OLD_MEAN.clone().requires_grad_(), OLD_MEAN.clone().requires_grad_())
    value = divergence(*same)
    assert (value == 0).all()
    gradients = torch.autograd.grad(value.sum(), same, allow_unused=True)
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)
    moved = (NEW_MEAN.clone().requires_grad_(), (2 * NEW_MEAN).requires_grad_())
    assert torch.autograd.gradcheck(divergence, moved)


def test_deterministic_steps_have_no_kl() -> None:
    now = Moments(mean=NEW_MEAN, velocity=NEW_MEAN, std=0.0, step=STEP)
    for divergence in (gaussian, gaussian_no_dt):
        with pytest.raises(ShapeError, match="mask deterministic steps"):
            divergence(now, now)
    assert velocity_mse(now, moments(OLD_MEAN)).mean().item() == pytest.approx(1.5e-4, abs=1e-12)
    with pytest.raises(ShapeError, match="must not be negative"):
        Moments(mean=NEW_MEAN, velocity=NEW_MEAN, std=STD, step=-0.1)


def test_gaussians_of_unequal_spread_have_their_exact_divergence() -> None:
    stds = torch.tensor([0.4, 0.3, 0.5, 0.2], dtype=torch.float64), torch.full((4,), 0.4, dtype=torch.float64)
    now, other = (
        Moments(mean=m, velocity=m, std=s, step=STEP) for m, s in zip((NEW_MEAN, OLD_MEAN), stds, strict=True)
    )
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(NEW_MEAN, stds[0]), torch.distributions.Normal(OLD_MEAN, stds[1])
    )
    torch.testing.assert_close(gaussian(now, other), exact)
