"""Weighted NSR (W-REINFORCE): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

CREDIT = (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[0.1], [-1.0], [-1.0], [-1.0]])


def test_advantages_of_the_method() -> None:
    assert_credit("nsr", *CREDIT)
