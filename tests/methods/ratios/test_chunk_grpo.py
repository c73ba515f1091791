"""Chunk-GRPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.maths.aggregates import Totals
from tests.configs.denoising_steps import GROUP_STD_EPS, assert_advantages, assert_clamped_to_five, assert_loss
from tests.configs.method_steps import config_of
from tests.maths.decision_rows import decisions_at

LOSS = 0.0056207227


def test_loss_of_the_method() -> None:
    assert_loss("chunk-grpo", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("chunk-grpo", GROUP_STD_EPS)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("chunk-grpo")


def test_chunks_have_one_ratio_and_equal_weights() -> None:
    """Log-ratios 3e-4 and 1e-4 of one chunk: r = exp(2e-4), clipped at 1.0001; 5e-5 of another: 1.00005000125."""
    objective = objective_of(config_of("chunk-grpo").objective)
    mask_BT, zero_BT = torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.float64)
    decisions = decisions_at(
        torch.tensor([[3e-4, 1e-4, 5e-5]], dtype=torch.float64),
        old_logprob_BT=zero_BT,
        advantage_BT=zero_BT + 1,
        weight_BT=objective.weights(mask_BT, Totals(num_samples=1, num_decisions=3)).double(),
        segment_BT=torch.tensor([[0, 0, 1]]),
    )
    value = float(objective(objective.modulated(decisions, {})).value)
    assert value == pytest.approx(-(1.0001 + 1.00005000125) / 2, abs=1e-7)
