"""PROF (process consistency filter): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TREE
from tests.configs.method_steps import Step, assert_credit

# of five right ones the two of the best steps, of three wrong ones the two of the worst
CREDIT = (
    Step(
        reward=(1, 1, 1, 1, 1, 0, 0, 0),
        parts=[[0.7, 0.7], [1.0, 0.8], [0.5, 0.5], [0.6, 1.0], [0.1, 0.3], [0.4, 0.4], [0.3, 0.1], [0.2, 0.4]],
    ),
    [[0.0] * 2, [A_TREE] * 2, [0.0] * 2, [A_TREE] * 2, [0.0] * 2, [0.0] * 2, [-A_TREE] * 2, [-A_TREE] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("prof", *CREDIT)
