"""OTC-PO: numbers worked out by hand from the formula; those of an independent implementation agree."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.methods.environments.otc_po import efficiency
from tests.configs.method_steps import Step, assert_credit

TURNS = ((0.0,) * 3,) * 4


def test_smallest_number_of_calls_of_a_right_sample_is_worth_most() -> None:
    """1, 2, 0 and 2 calls, the third is wrong: n = 1, and 2 calls are worth sin(4/3 pi/2) = sin(2 pi / 3) = 0.866025.

    The mean of 1, 0.866025, 0, 0.866025 is 0.683013, the deviation 0.459712.
    """
    rows = Step(reward=(1.0, 1.0, 0.0, 1.0), turns=TURNS, keys=[[]] * 4, lengths=(2, 3, 1, 3))
    credit = [0.689550, 0.398112, -1.485773, 0.398112]
    assert_credit("otc-po", rows, [[value] * 3 for value in credit])


def test_calls_are_worth_less_where_none_was_enough() -> None:
    """0, 2, 0 and 1 calls: cos(2 pi / 5) = 0.309017 and cos(pi / 3) = 0.5; mean 0.452254, deviation 0.419269."""
    rows = Step(reward=(1.0, 1.0, 0.0, 1.0), turns=TURNS, keys=[[]] * 4, lengths=(1, 3, 1, 2))
    credit = [1.306432, -0.341636, -1.078674, 0.113879]
    assert_credit("otc-po", rows, [[value] * 3 for value in credit])


def test_efficiency_is_1_at_the_smallest_number_and_falls_on_both_sides() -> None:
    calls_B, fewest_B = torch.tensor([0.0, 1.0, 2.0, 3.0, 8.0]), torch.full((5,), 2.0)
    harmonic = [2 * 2 * m / (m + 2) for m in (0, 1, 2, 3, 8)]  # 0, 4/3, 2, 12/5, 16/5
    assert efficiency(calls_B, fewest_B, 1.0).tolist() == pytest.approx([math.sin(f * math.pi / 4) for f in harmonic])
    assert efficiency(torch.tensor([3.0]), torch.tensor([0.0]), 2.0).tolist() == pytest.approx(
        [math.cos(3 * math.pi / 8)]
    )
