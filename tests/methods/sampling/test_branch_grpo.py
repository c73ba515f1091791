"""BranchGRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# decision 0 parts two and two, of means 0.5 and 0: +-0.25 / 0.353553, which two samples share; then 0.75 / 0.5
CREDIT = (
    Step(reward=ONE_OF_FOUR, states=((0, 1), (0, 1), (0, 3), (0, 3))),
    [[0.353553, 1.5], [0.353553, -0.5], [-0.353553, -0.5], [-0.353553, -0.5]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("branch-grpo", *CREDIT)
