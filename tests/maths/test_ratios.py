"""Ratio levels and the normalized Gaussian ratio."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.maths.ratios import (
    RATIO_LEVELS,
    decision_log_ratio_BT,
    normalized_log_ratio,
    segment_log_ratio_BT,
    sequence_log_ratio_BT,
    trajectory_log_ratio_BT,
)
from mmgrpo.methods.ratios.gmpo import pessimistic_bound

NAN = float("nan")


def test_a_chunk_has_the_geometric_mean_of_its_ratios():
    ratio_BT = torch.tensor([[1.01, 0.98, 1.03]], dtype=torch.float64)
    mask_BT = torch.ones(1, 3, dtype=torch.bool)
    segment_BT = torch.zeros(1, 3, dtype=torch.int64)
    chunk_BT = segment_log_ratio_BT(ratio_BT.log(), mask_BT, segment_BT).exp()
    torch.testing.assert_close(chunk_BT, torch.full_like(ratio_BT, 1.0064562274), rtol=0, atol=1e-10)


def test_segments_average_their_kept_decisions_row_by_row():
    log_ratio_BT = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, NAN, 40.0, 50.0]])
    mask_BT = torch.tensor([[True, True, True, True, True], [True, True, False, False, True]])
    # any integers, in any order, and the same number in two rows is two segments
    segment_BT = torch.tensor([[7, -3, 7, -3, 0], [7, 7, 7, 900, 2]])
    # row 0: 7 -> (1+3)/2 = 2, -3 -> (2+4)/2 = 3, 0 -> 5; row 1: 7 -> (10+20)/2 = 15, 900 -> nothing kept, 2 -> 50
    expected_BT = torch.tensor([[2.0, 3.0, 2.0, 3.0, 5.0], [15.0, 15.0, 15.0, 0.0, 50.0]])
    torch.testing.assert_close(segment_log_ratio_BT(log_ratio_BT, mask_BT, segment_BT), expected_BT)


def test_sequence_is_the_mean_over_kept_decisions():
    log_ratio_BT = torch.tensor([[1.0, 2.0, 6.0], [4.0, NAN, 2.0], [1.0, 1.0, 1.0]])
    mask_BT = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    expected_BT = torch.tensor([[3.0, 3.0, 3.0], [3.0, 3.0, 3.0], [0.0, 0.0, 0.0]])
    actual_BT = sequence_log_ratio_BT(log_ratio_BT, mask_BT, torch.zeros(3, 3, dtype=torch.int64))
    torch.testing.assert_close(actual_BT, expected_BT)


def test_trajectory_is_the_sum_over_kept_decisions():
    log_ratio_BT = torch.tensor([[1.0, 2.0, 6.0], [4.0, NAN, 2.0], [1.0, 1.0, 1.0]])
    mask_BT = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    expected_BT = torch.tensor([[9.0, 9.0, 9.0], [6.0, 6.0, 6.0], [0.0, 0.0, 0.0]])
    actual_BT = trajectory_log_ratio_BT(log_ratio_BT, mask_BT, torch.zeros(3, 3, dtype=torch.int64))
    torch.testing.assert_close(actual_BT, expected_BT)


def test_a_pessimistic_bound_holds_gains_and_lets_losses_be():
    log_ratio_BT = torch.tensor([[-1.0, 0.1, 1.0]]).repeat(3, 1).requires_grad_()
    advantage_BT = torch.tensor([[2.0], [-2.0], [0.0]]).expand(3, 3)
    bounded = pessimistic_bound(log_ratio_BT, advantage_BT, low=0.4, high=0.3)
    torch.testing.assert_close(
        bounded.log_ratio_BT, torch.tensor([[-1.0, 0.1, 0.3], [-0.4, 0.1, 1.0], [-0.4, 0.1, 1.0]])
    )
    (grad_BT,) = torch.autograd.grad(bounded.log_ratio_BT[:2].sum(), log_ratio_BT)
    assert (grad_BT[:2] == 0).tolist() == (bounded.low_BT | bounded.high_BT)[:2].tolist()
    assert bounded.low_BT.tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert bounded.high_BT.tolist() == [[False, False, True], [False] * 3, [False] * 3]


def test_levels_are_nested():
    generator = torch.Generator().manual_seed(0)
    log_ratio_BT = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(3, 6, generator=generator) > 0.3
    shared_BT, separate_BT = torch.zeros(3, 6, dtype=torch.int64), torch.arange(6).expand(3, 6)
    torch.testing.assert_close(
        segment_log_ratio_BT(log_ratio_BT, mask_BT, shared_BT), sequence_log_ratio_BT(log_ratio_BT, mask_BT, shared_BT)
    )
    torch.testing.assert_close(
        segment_log_ratio_BT(log_ratio_BT, mask_BT, separate_BT)[mask_BT],
        decision_log_ratio_BT(log_ratio_BT, mask_BT, separate_BT)[mask_BT],
    )


@pytest.mark.parametrize("name", [name for name in RATIO_LEVELS if name != "sequence_token"])
def test_levels_have_the_right_gradient(name: str):
    log_ratio_BT = torch.randn(2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False, True, True], [True, False, True, True, True]])
    segment_BT = torch.tensor([[0, 0, 0, 1, 1], [4, 4, 4, 2, 4]])
    assert torch.autograd.gradcheck(
        lambda x_BT: RATIO_LEVELS[name](x_BT, mask_BT, segment_BT), log_ratio_BT.requires_grad_()
    )


def test_a_normalized_ratio_by_hand():
    # (log r + b) std for the four-element Gaussian step of test_objectives: (-0.01140625 + 0.00046875) * 0.4
    log_ratio = normalized_log_ratio(torch.tensor(-0.01140625), torch.tensor(4.6875e-4), torch.tensor(0.4))
    assert log_ratio.exp().item() == pytest.approx(0.9956345564, abs=1e-7)


def test_normalized_log_ratios_have_mean_zero_over_on_policy_samples():
    num_draws, num_dims, std = 20_000, 8, 0.3
    generator = torch.Generator().manual_seed(2)
    mean_gap = torch.randn(num_dims, generator=generator, dtype=torch.float64) * 0.1
    noise = torch.randn(num_draws, num_dims, generator=generator, dtype=torch.float64)
    # x = mu_old + std noise: log N(x; mu) - log N(x; mu_old), averaged over elements
    log_ratio = ((std * noise) ** 2 - (std * noise - mean_gap) ** 2).mean(1) / (2 * std**2)
    drift = mean_gap.square().mean() / (2 * std**2)
    normalized = normalized_log_ratio(log_ratio, drift, torch.tensor(std, dtype=torch.float64))
    standard_error = normalized.std() / math.sqrt(num_draws)
    assert drift > 0
    assert abs(normalized.mean()) < 4 * standard_error
    assert abs(log_ratio.mean() + drift) < 4 * standard_error / std
    # the spread no longer holds 1/std: std of mean(gap * noise) = rms(gap) / sqrt(dims)
    assert normalized.std().item() == pytest.approx(mean_gap.norm().item() / num_dims, rel=0.02)
