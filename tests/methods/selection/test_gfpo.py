"""GFPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# of ten the eight shortest: four of them right, so 0.5 / (0.5345225 + 1e-4)
CREDIT = (
    Step(reward=(1, 0, 1, 0, 1, 0, 1, 0, 1, 1), lengths=range(1, 11)),
    [*[[0.935239] * 10, [-0.935239] * 10] * 4, [0.0] * 10, [0.0] * 10],
)


def test_advantages_of_the_method() -> None:
    assert_credit("gfpo", *CREDIT)
