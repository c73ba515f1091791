"""MAPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# l = 1 - 4 / 4 * 3 / 4 = 0.25, population deviation 0.4330127: 0.75 * 0.75 / 0.4331127 + 0.25 * 0.75 / 0.25
CREDIT = (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[2.048737], *[[-0.682912]] * 3])


def test_advantages_of_the_method() -> None:
    assert_credit("mapo", *CREDIT)
