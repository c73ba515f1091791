"""PVPO (pre-estimated value): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# r - V
CREDIT = (
    Step(reward=(1, 0, 1), groups=(0, 0, 1), lengths=[1] * 3, columns={"static_value": (0.25, 0.25, 0.75)}),
    [[0.75], [-0.25], [0.25]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("pvpo", *CREDIT)
