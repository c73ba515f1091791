"""RePO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO
from tests.configs.method_steps import Step, assert_credit

# sampled 1, 0 have one baseline, replayed 1, 1 another
CREDIT = (Step(reward=(1, 0, 1, 1), lengths=[1] * 4, sources=(0, 0, 1, 1)), [[A_TWO], [-A_TWO], [0.0], [0.0]])


def test_advantages_of_the_method() -> None:
    assert_credit("repo", *CREDIT)
