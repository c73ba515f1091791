"""GiGPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# returns 0.95, 1 and 0, 0: of state a 0.95, 0, 0 less their mean 0.316667, of deviation 0.548483; b was met once
CREDIT = (
    Step(reward=ONE_OF_TWO, turns=((0, 1), (0, 0)), keys=(("a", "b"), ("a", "a"))),
    [[A_TWO_6 + 1.154698, A_TWO_6], [-A_TWO_6 - 0.577349] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("gigpo", *CREDIT)
