"""GRPO-lambda (stable reinforcement learning for efficient reasoning): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO
from tests.configs.method_steps import Step, assert_credit

# one of five groups: the first, of 1, 2 and 3 decisions, z -1, 0, 1: 1 - 0.6 / (1 + e^-z) of deviation 0.1386352
CREDIT = (
    Step(
        reward=(1, 1, 1, *[1, 0] * 4),
        groups=(0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4),
        lengths=(1, 2, 3, *[1] * 8),
    ),
    [
        *[[z * 0.1386352 / 0.1387352] * 3 for z in (1, 0, -1)],
        *[[A_TWO] * 3, [-A_TWO] * 3] * 4,
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("grpo-lambda", *CREDIT)
