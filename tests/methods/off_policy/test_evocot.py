"""EvoCoT: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
CREDIT = (PAIR, [[A_TWO], [-A_TWO]])


def test_advantages_of_the_method() -> None:
    assert_credit("evocot", *CREDIT)
