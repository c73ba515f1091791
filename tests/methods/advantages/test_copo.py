"""COPO (consistency-aware): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO_6
from tests.configs.method_steps import Step, assert_credit

# means 0.5, 1, 0: g = 0, 1, -1 over 1 + 2e-6; w = sigmoid(0) for the right one of a group of 1 bit, sigmoid(-5) =
# 0.0066929 for those of a group of one answer, 0 for what is wrong
CREDIT = (
    Step(
        reward=(1, 0, 1, 1, 0, 0),
        groups=(0, 0, 1, 1, 2, 2),
        lengths=[1] * 6,
        named_rewards={"answers": (0.5, 0.5, 1.0, 1.0, 0.5, 0.5)},
    ),
    [[A_TWO_6 / 2], [0.0], [0.993305], [0.993305], [-0.999998], [-0.999998]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("copo", *CREDIT)
