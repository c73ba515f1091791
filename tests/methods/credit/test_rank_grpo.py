"""Rank-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_FOUR, A_TREE
from tests.configs.method_steps import Step, assert_credit

# hits of the first items 1, 0, 0, 0 and of the second ones 0, 1, 1, 0
CREDIT = (
    Step(reward=[0] * 4, lengths=[2] * 4, parts_of={"items": [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]}),
    [[A_FOUR, -A_TREE], [-A_FOUR / 3, A_TREE], [-A_FOUR / 3, A_TREE], [-A_FOUR / 3, -A_TREE]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rank-grpo", *CREDIT)
