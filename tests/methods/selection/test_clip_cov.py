"""Clip-Cov: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_refilled
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# c = A (logprob + 2) is 1.5 in the first row alone, which is left out: six decisions of 0.499999 over eight
LOSS = (Step(reward=ONE_OF_FOUR, old_logprob=((-1, -1), (-3, -3), (-1, -1), (-3, -3))), 0.749998 * 0.5)


def test_loss_of_the_method() -> None:
    assert_loss("clip-cov", *LOSS)


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("clip-cov")
