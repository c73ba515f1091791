"""Klear-Reasoner (GPPO): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_refilled
from tests.configs.method_rows import A_TWO_6, DOWN, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (DOWN,))), A_TWO_6 * (0.8 - 1.28) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("klear-gppo", *LOSS)


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("klear-gppo")
