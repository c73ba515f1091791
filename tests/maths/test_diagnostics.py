"""Diagnostics: sums that add over slices and ranks, and the metrics they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.maths.aggregates import count, token_mean
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.surrogates import clipped
from mmgrpo.values import ENTROPY, Value, from_reference
from tests.maths.decision_rows import decisions_at


def measure(
    ratio_BT: Tensor, advantage_BT: Tensor, values: Mapping[Value, Tensor] | None = None, **parts: Any
) -> Diagnostics:
    """Diagnostics of an objective with these parts besides its surrogate."""
    mask_BT = torch.ones_like(ratio_BT, dtype=torch.bool)
    decisions = decisions_at(
        ratio_BT.log(),
        old_logprob_BT=torch.zeros_like(ratio_BT),
        advantage_BT=advantage_BT,
        weight_BT=token_mean(mask_BT, count(mask_BT)),
        values=values or {},
    )

    def surrogate(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor):
        return clipped(ratio_BT, logprob_BT, advantage_BT, low=0.2, high=0.2)

    return Objective(surrogate=surrogate, aggregate=token_mean, **parts)(decisions).diagnostics


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
    kl = {from_reference("k3"): torch.full_like(RATIO_BT, 0.3)}
    with_kl = measure(RATIO_BT, ADVANTAGE_BT, kl, divergence="k3", kl_beta=0.1)
    entropy = {ENTROPY: torch.tensor([[1.0, 2.0]], dtype=torch.float64)}
    with_entropy = measure(RATIO_BT[:, :2], ADVANTAGE_BT[:, :2], entropy, entropy_bonus=0.2)
    metrics = (with_kl + with_entropy).as_metrics()
    assert metrics["policy/kl_mean"] == pytest.approx(0.3)
    assert metrics["policy/entropy_mean"] == pytest.approx(1.5)
    assert "policy/entropy_mean" not in with_kl.as_metrics()


def test_losses_of_several_terms_are_reported_and_add_up():
    # the surrogate's -0.6 of the test by hand; the mean KL 0.3 at a weight of 0.1; the mean entropy 1.5 at one of 0.2
    values = {
        from_reference("k3"): torch.full_like(RATIO_BT, 0.3),
        ENTROPY: torch.tensor([[1.0, 2.0, 1.0, 2.0]], dtype=torch.float64),
    }
    diagnostics = measure(RATIO_BT, ADVANTAGE_BT, values, divergence="k3", kl_beta=0.1, entropy_bonus=0.2)
    parts = {name: value for name, value in diagnostics.as_metrics().items() if name.startswith("policy/loss")}
    assert parts == pytest.approx(
        {"policy/loss": -0.87, "policy/loss/surrogate": -0.6, "policy/loss/kl": 0.03, "policy/loss/entropy": -0.3}
    )
    sums = {name: (value.count, value.total) for name, value in diagnostics.as_numbers().value_sums.items()}
    assert sums["kl"] == pytest.approx((4, 1.2))
    assert sums["entropy"] == pytest.approx((4, 6.0))


def test_a_rank_without_a_slice_has_no_part_of_any_name_and_adds_as_zero():
    values = {from_reference("k3"): torch.full_like(RATIO_BT, 0.3)}
    some = measure(RATIO_BT, ADVANTAGE_BT, values, divergence="k3", kl_beta=0.1).as_numbers()
    assert Diagnostics() + some == some == some + Diagnostics()


def test_sums_add_and_the_largest_log_ratio_is_the_larger():
    left, right = measure(RATIO_BT[:, :1], ADVANTAGE_BT[:, :1]), measure(RATIO_BT[:, 1:], ADVANTAGE_BT[:, 1:])
    both, total = left + right, measure(RATIO_BT, ADVANTAGE_BT)
    assert both.num_decisions == 4
    assert float(both.log_ratio_abs_max) == pytest.approx(0.6931471806)
    assert both.as_metrics()["policy/ratio_std"] == pytest.approx(total.as_metrics()["policy/ratio_std"])


def test_zero_is_neutral_and_has_metrics():
    some = measure(RATIO_BT, ADVANTAGE_BT)
    assert (Diagnostics() + some).as_numbers() == some.as_numbers()
    assert Diagnostics().as_metrics() == {
        "policy/loss": 0.0,
        "policy/ratio_mean": 1.0,
        "policy/ratio_std": 0.0,
        "policy/clip_low_frac": 0.0,
        "policy/clip_high_frac": 0.0,
    }


@pytest.mark.gpu
def test_a_total_begun_on_the_cpu_follows_the_slices_to_the_gpu():
    on_gpu = measure(RATIO_BT.cuda(), ADVANTAGE_BT.cuda())
    total = Diagnostics() + on_gpu + on_gpu
    assert isinstance(total.num_decisions, Tensor)
    assert total.num_decisions.device.type == "cuda"
    assert total.as_metrics() == pytest.approx(measure(RATIO_BT, ADVANTAGE_BT).as_metrics() | {"policy/loss": -1.2})


def test_the_sum_of_ranks_as_numbers_is_that_of_their_tensors():
    ranks = [measure(RATIO_BT[:, :1], ADVANTAGE_BT[:, :1]), measure(RATIO_BT[:, 1:], ADVANTAGE_BT[:, 1:])]
    reduced = sum((rank.as_numbers() for rank in ranks), start=Diagnostics())
    assert reduced == (ranks[0] + ranks[1]).as_numbers()
    # ratios 0.5, 1, 1.5, 1, each decision weighing all of its rank's: -(-0.8) of the first, the mean of the others'
    assert reduced.loss_sums["surrogate"] == pytest.approx(0.8 - (1 + 1.2 + 1) / 3)
    assert (reduced.num_decisions, reduced.num_weighed, reduced.clip_low_count, reduced.clip_high_count) == (4, 4, 1, 1)
    assert (reduced.ratio_excess_sum, reduced.ratio_excess_square_sum) == pytest.approx((0.0, 0.5))
    assert reduced.log_ratio_abs_max == pytest.approx(0.6931471806)


def test_the_spread_of_ratios_close_to_one_survives_float32():
    # half 1 + 1e-5, half 1 - 1e-5: E[r^2] - E[r]^2 in float32 would be lost in its rounding, 1e-7
    ratio_BT = torch.tensor([[1e-5, -1e-5]]).repeat(1, 500).exp()
    metrics = measure(ratio_BT, torch.ones_like(ratio_BT)).as_metrics()
    assert metrics["policy/ratio_std"] == pytest.approx(1e-5, rel=0.02)


def test_diagnostics_hold_no_graph():
    ratio_BT = RATIO_BT.clone().requires_grad_()
    values = {from_reference("k3"): 0.1 * ratio_BT}
    diagnostics = measure(ratio_BT, ADVANTAGE_BT, values, divergence="k3", kl_beta=0.1)
    sums = diagnostics.value_sums["kl"]
    numbers = [*diagnostics.loss_sums.values(), sums.count, sums.total]
    numbers += [getattr(diagnostics, f.name) for f in fields(diagnostics) if not f.name.endswith("_sums")]
    numbers += [number for total in diagnostics.change_sums.values() for number in (total.count, total.total)]
    assert all(isinstance(number, Tensor) and not number.requires_grad for number in numbers)
