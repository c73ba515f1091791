"""Pass@k Training: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# R = 1 - C(6, 4) / C(8, 4) = 0.785714, s = 0.410326, W = C(5, 3) / C(7, 3) = 0.285714
CREDIT = (
    Step(reward=(1, 1, 0, 0, 0, 0, 0, 0), lengths=[1] * 8),
    [*[[0.522231]] * 2, *[[-0.174077]] * 6],
)


def test_advantages_of_the_method() -> None:
    assert_credit("pass-k-training", *CREDIT)
