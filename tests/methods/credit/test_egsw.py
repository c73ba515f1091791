"""EGSW: numbers worked out by hand."""

from __future__ import annotations

from math import exp

from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

W = 2 / (1 + exp(-2 * A_TWO + 1))
CREDIT = (Step(reward=ONE_OF_TWO, entropy=((0.5,), (1.5,))), [[A_TWO * W], [-A_TWO * (2 - W)]])


def test_advantages_of_the_method() -> None:
    assert_credit("egsw", *CREDIT)
