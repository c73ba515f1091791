"""SPO (single stream): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO

# of prompts never seen 0.5 is expected: 0.5 and -0.5, of deviation 0.7071068
CREDIT = (Step(reward=ONE_OF_TWO, groups=[0, 1], lengths=[1, 1]), [[A_TWO], [-A_TWO]])


def test_advantages_of_the_method() -> None:
    assert_credit("spo", *CREDIT)
