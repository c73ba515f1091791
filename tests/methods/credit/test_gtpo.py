"""GTPO (trajectory-based): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# [a b c] and [a x c]: both ends are in conflict, so 2, 1, 2 and 0, 1, 0 over 2 conflicts; 0.1 H = 0.02 comes off
CREDIT = (
    Step(reward=ONE_OF_TWO, tokens=((1, 2, 3), (1, 9, 3)), entropy=[[0.2] * 3] * 2),
    [[A_TWO - 0.02, A_TWO / 2 - 0.01, A_TWO - 0.02], [0.0, -A_TWO / 2 - 0.01, 0.0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("gtpo", *CREDIT)
