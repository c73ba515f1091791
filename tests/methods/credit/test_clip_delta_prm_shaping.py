"""Delta, and clip, of process rewards: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# 0.9 - 0.9, 0.9 - 0.5, 0.5 and 0.2 - 0.4, 0.4 - 0.4, 0.4 on top of the outcome
CREDIT = (
    Step(reward=ONE_OF_TWO, parts=[[0.9, 0.9, 0.5], [0.2, 0.4, 0.4]]),
    [[A_TWO, A_TWO + 0.4, A_TWO + 0.5], [-A_TWO - 0.2, -A_TWO, -A_TWO + 0.4]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("clip-delta-prm-shaping", *CREDIT)
