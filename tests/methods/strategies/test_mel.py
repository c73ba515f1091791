"""MEL (meta-experience learning): numbers worked out by hand."""

from __future__ import annotations

from math import nan

from tests.configs.method_rows import A_TWO
from tests.configs.method_steps import Step, assert_credit

# a pair, and two rows of experiences, of which one proved right: its mean, with two others, is worth 2
CREDIT = (
    Step(reward=(1.0, 0.0, 1.0, 0.0), groups=(0, 0, 1, 2), named_rewards={"proved": (nan, nan, 1.0, 0.0)}),
    [[A_TWO] * 2, [-A_TWO] * 2, [2.0, 2.0], [0.0, 0.0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("mel", *CREDIT)
