"""Diagnostics: sums that add over slices and ranks, and the metrics they give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.maths.aggregates import count, decision_mean
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.maths.objectives import Decisions, Objective
from mmgrpo.maths.surrogates import clipped


def measure(ratio_BT: Tensor, advantage_BT: Tensor, **optional: Tensor) -> Diagnostics:
    mask_BT = torch.ones_like(ratio_BT, dtype=torch.bool)
    decisions = Decisions(
        logprob_BT=ratio_BT.log(),
        old_logprob_BT=torch.zeros_like(ratio_BT),
        advantage_BT=advantage_BT,
        mask_BT=mask_BT,
        weight_BT=decision_mean(mask_BT, count(mask_BT)),
        segment_BT=torch.zeros_like(ratio_BT, dtype=torch.int64),
        **optional,
    )

    def surrogate(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor):
        return clipped(ratio_BT, logprob_BT, advantage_BT, low=0.2, high=0.2)

    return Objective(surrogate=surrogate, aggregate=decision_mean)(decisions).diagnostics


RATIO_BT = torch.tensor([[0.5, 1.0, 1.5, 1.0]], dtype=torch.float64)
ADVANTAGE_BT = torch.tensor([[-1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)


def test_metrics_by_hand():
    # losses 0.8, -1, -1.2, -1: mean -0.6; ratios mean 1, variance (0.25 + 0.25) / 4
    assert measure(RATIO_BT, ADVANTAGE_BT).as_metrics() == pytest.approx(
        {
            "policy/loss": -0.6,
            "policy/ratio_mean": 1.0,
            "policy/ratio_std": 0.125**0.5,
            "policy/clip_low_frac": 0.25,
            "policy/clip_high_frac": 0.25,
        }
    )


def test_kl_and_entropy_are_averaged_over_the_decisions_that_have_them():
    with_kl = measure(RATIO_BT, ADVANTAGE_BT, kl_BT=torch.full_like(RATIO_BT, 0.3))
    with_entropy = measure(RATIO_BT[:, :2], ADVANTAGE_BT[:, :2], entropy_BT=torch.tensor([[1.0, 2.0]]))
    metrics = (with_kl + with_entropy).as_metrics()
    assert metrics["policy/kl_mean"] == pytest.approx(0.3)
    assert metrics["policy/entropy_mean"] == pytest.approx(1.5)
    assert "policy/entropy_mean" not in with_kl.as_metrics()


def test_sums_add_and_the_largest_log_ratio_is_the_larger():
    left, right = measure(RATIO_BT[:, :1], ADVANTAGE_BT[:, :1]), measure(RATIO_BT[:, 1:], ADVANTAGE_BT[:, 1:])
    both, whole = left + right, measure(RATIO_BT, ADVANTAGE_BT)
    assert both.num_decisions == 4
    assert both.log_ratio_abs_max.item() == pytest.approx(0.6931471806)
    assert both.as_metrics()["policy/ratio_std"] == pytest.approx(whole.as_metrics()["policy/ratio_std"])


def test_zero_is_neutral_and_has_metrics():
    some = measure(RATIO_BT, ADVANTAGE_BT)
    torch.testing.assert_close((Diagnostics.zero() + some).to_tensor(), some.to_tensor(), rtol=0, atol=0)
    assert Diagnostics.zero().as_metrics() == {
        "policy/loss": 0.0,
        "policy/ratio_mean": 1.0,
        "policy/ratio_std": 0.0,
        "policy/clip_low_frac": 0.0,
        "policy/clip_high_frac": 0.0,
    }


@pytest.mark.gpu
def test_a_total_begun_on_the_cpu_follows_the_slices_to_the_gpu():
    on_gpu = measure(RATIO_BT.cuda(), ADVANTAGE_BT.cuda())
    total = Diagnostics.zero() + on_gpu + on_gpu
    assert total.num_decisions.device.type == "cuda"
    assert total.as_metrics() == pytest.approx(measure(RATIO_BT, ADVANTAGE_BT).as_metrics() | {"policy/loss": -1.2})


def test_an_all_reduce_of_the_vectors_is_the_sum():
    ranks = [measure(RATIO_BT[:, :1], ADVANTAGE_BT[:, :1]), measure(RATIO_BT[:, 1:], ADVANTAGE_BT[:, 1:])]
    number_WN = torch.stack([rank.to_tensor() for rank in ranks])  # W ranks
    reduced_N = torch.cat([number_WN[:, :-1].sum(0), number_WN[:, -1:].amax(0)])
    torch.testing.assert_close(Diagnostics.from_tensor(reduced_N).to_tensor(), (ranks[0] + ranks[1]).to_tensor())


def test_the_spread_of_ratios_close_to_one_survives_float32():
    # half 1 + 1e-5, half 1 - 1e-5: E[r^2] - E[r]^2 in float32 would be lost in its rounding, 1e-7
    ratio_BT = torch.tensor([[1e-5, -1e-5]]).repeat(1, 500).exp()
    metrics = measure(ratio_BT, torch.ones_like(ratio_BT)).as_metrics()
    assert metrics["policy/ratio_std"] == pytest.approx(1e-5, rel=0.02)


def test_diagnostics_hold_no_graph():
    ratio_BT = RATIO_BT.clone().requires_grad_()
    assert not measure(ratio_BT, ADVANTAGE_BT).to_tensor().requires_grad
