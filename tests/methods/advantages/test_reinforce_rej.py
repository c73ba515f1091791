"""Reinforce-Rej: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# the reward itself, where the rewards of a group differ
CREDIT = (
    Step(reward=(1, 0, 1, 1, 0, 0), groups=(0, 0, 1, 1, 2, 2), lengths=[1] * 6),
    [[1.0], *[[0.0]] * 5],
)


def test_advantages_of_the_method() -> None:
    assert_credit("reinforce-rej", *CREDIT)
