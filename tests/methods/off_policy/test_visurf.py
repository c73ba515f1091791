"""ViSurf: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# the label's 1 becomes the mean 0.5 of the others: mean 0.5, deviation sqrt(1 / 4)
CREDIT = (
    Step(reward=(1, 0, 1, 0, 1), lengths=[1] * 5, origins=(0, 0, 0, 0, 2)),
    [[0.5 / 0.5001], [-0.5 / 0.5001]] * 2 + [[0.0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("visurf", *CREDIT)
