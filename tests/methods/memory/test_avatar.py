"""AVATAR: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO
from tests.configs.method_steps import Step, assert_credit

# sampled and replayed rows have separate baselines; 1 + (2 t - 1)^2 at 0, 1 / 2 and 1
CREDIT = (
    Step(reward=(1, 0, 1, 0), lengths=[3] * 4, sources=(0, 0, 1, 1)),
    [[2 * A_TWO, A_TWO, 2 * A_TWO], [-2 * A_TWO, -A_TWO, -2 * A_TWO]] * 2,
)


def test_advantages_of_the_method() -> None:
    assert_credit("avatar", *CREDIT)
