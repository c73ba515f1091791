"""Position-based advantage shaping: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# 0.1 sigmoid of -7.5, -3.75, 0 and 3.75
CREDIT = (
    Step(reward=ONE_OF_TWO, lengths=(4, 4), number=250),
    [
        [A_TWO_6 + 0.0000552779, A_TWO_6 + 0.0022977370, A_TWO_6 + 0.05, A_TWO_6 + 0.0977022630],
        [-A_TWO_6 - 0.0000552779, -A_TWO_6 - 0.0022977370, -A_TWO_6 - 0.05, -A_TWO_6 - 0.0977022630],
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("ppl-position", *CREDIT)
