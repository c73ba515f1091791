"""AEPO (arbitrary entropy policy optimisation): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit
from tests.configs.pins.rows import A_TWO_6

# a positive drawn hotter is worth 1 and moves nobody's mean
CREDIT = (Step(reward=(1, 0, 1), lengths=[1] * 3, origins=(0, 0, 2)), [[A_TWO_6], [-A_TWO_6], [1.0]])


def test_advantages_of_the_method() -> None:
    assert_credit("aepo", *CREDIT)
