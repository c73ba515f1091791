"""Densities of Gaussian steps and their reduction to one number per sample."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ShapeError
from mmgrpo.maths.gaussian import (
    DENSITIES,
    REDUCTIONS,
    element_mean,
    element_sum_sqrt,
    gaussian_logdensity,
    squared_error_logdensity,
)

OLD_MEAN = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
NEW_MEAN = OLD_MEAN + torch.tensor([0.01, 0.02, -0.01, 0.0], dtype=torch.float64)
STD = 0.4
SAMPLE = OLD_MEAN + STD * torch.tensor([0.5, -1.0, 0.25, 0.75], dtype=torch.float64)


def logprob(mean: Tensor) -> Tensor:
    return element_mean(gaussian_logdensity(SAMPLE, mean, STD).sum(), 4)


def test_golden_ratio_of_a_step() -> None:
    old, new = logprob(OLD_MEAN), logprob(NEW_MEAN)
    expected = torch.tensor([-0.2370228013, -0.2484290513, -0.01140625, 0.9886585546], dtype=torch.float64)
    torch.testing.assert_close(torch.stack([old, new, new - old, (new - old).exp()]), expected, rtol=0, atol=1e-9)


def test_gaussian_is_the_normal_density_for_float_and_tensor_spreads() -> None:
    generator = torch.Generator().manual_seed(1)
    sample, mean = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    std_31 = torch.tensor([[0.05], [0.7], [3.0]], dtype=torch.float64)
    expected = torch.distributions.Normal(mean, std_31).log_prob(sample)
    torch.testing.assert_close(gaussian_logdensity(sample, mean, std_31), expected, rtol=1e-12, atol=1e-12)
    row = gaussian_logdensity(sample[1], mean[1], 0.7)
    torch.testing.assert_close(row, expected[1], rtol=1e-12, atol=1e-12)


def test_squared_error_weighs_each_step_by_twice_its_variance() -> None:
    """Its log-ratio is 2 std^2 times that of the Gaussian: -0.01140625 * 2 * 0.16 = -0.00365."""
    old, new = (squared_error_logdensity(SAMPLE, mean, STD) for mean in (OLD_MEAN, NEW_MEAN))
    # (x - mean)^2 = (0.2, 0.4, 0.1, 0.3)^2 with eps std = (0.2, -0.4, 0.1, 0.3)
    torch.testing.assert_close(old, -torch.tensor([0.04, 0.16, 0.01, 0.09], dtype=torch.float64))
    assert (new - old).mean().item() == pytest.approx(-0.00365, abs=1e-12)


@pytest.mark.parametrize("name", DENSITIES)
def test_density_gradients(name: str) -> None:
    sample, mean = SAMPLE.clone().requires_grad_(), NEW_MEAN.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, m: DENSITIES[name](x, m, STD), (sample, mean))


def test_reductions_by_hand() -> None:
    total_B = torch.tensor([8.0, -6.0, 0.0], dtype=torch.float64)
    count_B = torch.tensor([4, 9, 0])  # the last sample has no elements left, so its sum is empty
    expected = {"mean": [2.0, -2 / 3, 0.0], "sum_sqrt": [4.0, -2.0, 0.0]}
    for name, values in expected.items():
        actual = REDUCTIONS[name](total_B, count_B)
        torch.testing.assert_close(actual, torch.tensor(values, dtype=torch.float64), rtol=1e-15, atol=0)
    torch.testing.assert_close(element_mean(total_B, 4), total_B / 4, rtol=0, atol=0)
    torch.testing.assert_close(element_sum_sqrt(total_B, 4), total_B / 2, rtol=0, atol=0)


def test_spread_of_the_log_ratio_against_resolution() -> None:
    """Every mean moves by 0.1 std: the ratio spreads by 0.1 / sqrt(D) in the mean and by 0.1 in sum / sqrt(D)."""
    generator = torch.Generator().manual_seed(2)
    for D in (64, 1024):
        eps = torch.randn(4000, D, dtype=torch.float64, generator=generator)
        change = gaussian_logdensity(eps, torch.full_like(eps, 0.1), 1.0) - gaussian_logdensity(eps, 0 * eps, 1.0)
        total_B = change.sum(1)
        assert element_mean(total_B, D).std().item() == pytest.approx(0.1 / math.sqrt(D), rel=0.05)
        assert element_sum_sqrt(total_B, D).std().item() == pytest.approx(0.1, rel=0.05)


def test_a_std_of_zero_raises() -> None:
    for std in (0.0, -0.4, math.nan):
        with pytest.raises(ShapeError, match="mask deterministic steps"):
            gaussian_logdensity(SAMPLE, OLD_MEAN, std)
    for reduce in REDUCTIONS.values():
        with pytest.raises(ShapeError, match="at least one element"):
            reduce(torch.ones(2), 0)
