"""GTPO (token rewards by entropy): numbers worked out by hand."""

from __future__ import annotations

from math import sqrt

from tests.configs.method_steps import Step, assert_credit

# right: 1.15, 1.05 and the other way round, standardized +-sqrt(3) / 2; wrong: -1.04 and -1.16, likewise
CREDIT = (
    Step(reward=(1, 1, 0, 0), entropy=((3, 1), (1, 3), (4, 1), (1, 4))),
    [[sign * sqrt(0.75), -sign * sqrt(0.75)] for sign in (1, -1, 1, -1)],
)


def test_advantages_of_the_method() -> None:
    assert_credit("gtpo--token-sequence", *CREDIT)
