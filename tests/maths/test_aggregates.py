"""Aggregates: the weight of a decision, and that no split of the batch changes it."""

from __future__ import annotations

import functools

import pytest
import torch

from mmgrpo.maths.aggregates import (
    AGGREGATES,
    Totals,
    constant_length,
    count,
    sample_sum,
    sequence_mean,
    token_mean,
)

# rows with 3, 1 and 0 kept decisions: 2 samples, 4 decisions
MASK_BT = torch.tensor([[True, True, True], [False, True, False], [False, False, False]])
BOUND = {**AGGREGATES, "constant_length": functools.partial(constant_length, length=8)}


def test_count_leaves_empty_samples_out():
    assert count(MASK_BT) == Totals(num_samples=2, num_decisions=4)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (token_mean, [[1 / 4, 1 / 4, 1 / 4], [0, 1 / 4, 0], [0, 0, 0]]),
        (sequence_mean, [[1 / 6, 1 / 6, 1 / 6], [0, 1 / 2, 0], [0, 0, 0]]),
        (sample_sum, [[1 / 2, 1 / 2, 1 / 2], [0, 1 / 2, 0], [0, 0, 0]]),
        (functools.partial(constant_length, length=5), [[1 / 10, 1 / 10, 1 / 10], [0, 1 / 10, 0], [0, 0, 0]]),
    ],
)
def test_weights_by_hand(aggregate, expected: list[list[float]]):
    torch.testing.assert_close(aggregate(MASK_BT, count(MASK_BT)), torch.tensor(expected))


def test_a_rectangular_batch_makes_sample_and_decision_means_equal():
    # denoising: every sample has the same steps, so both are the mean over steps and batch
    mask_BT = torch.ones(4, 5, dtype=torch.bool)
    torch.testing.assert_close(sequence_mean(mask_BT, count(mask_BT)), torch.full((4, 5), 1 / 20))
    torch.testing.assert_close(token_mean(mask_BT, count(mask_BT)), torch.full((4, 5), 1 / 20))


@pytest.mark.parametrize("name", AGGREGATES)
def test_weights_without_decisions_are_zero(name: str):
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    assert (BOUND[name](mask_BT, count(mask_BT)) == 0).all()
