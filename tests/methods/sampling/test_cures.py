"""CurES: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
CREDIT = (PAIR, [[A_TWO_6], [-A_TWO_6]])


def test_advantages_of_the_method() -> None:
    assert_credit("cures", *CREDIT)
