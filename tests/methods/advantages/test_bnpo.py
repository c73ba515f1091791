"""BNPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# means 0.25, 0.5, 0.75: alpha = beta = 1.5, and 1 / Beta(0.25; 1.5, 1.5) = 0.906900, 1 / Beta(0.5; ..) = 0.785398
CREDIT = (
    Step(reward=(1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0), groups=[0] * 4 + [1] * 4 + [2] * 4, lengths=[1] * 12),
    [[0.680175], *[[-0.226725]] * 3, *[[0.392699]] * 2, *[[-0.392699]] * 2, *[[0.226725]] * 3, [-0.680175]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("bnpo", *CREDIT)
