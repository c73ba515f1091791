"""Re-Schedule (r-score): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit
from tests.configs.pins.rows import A_TWO_6

PAIRS = (1.0, 0.0, 1.0, 0.0)
# the highest r-score weighs 2 in the first half of the run, one a fifth down 2 - 1.5 / 5
CREDIT = (
    Step(reward=PAIRS, groups=(0, 0, 1, 1), lengths=[1] * 4, columns={"rank": (0.0, 0.0, 0.2, 0.2)}),
    [[2 * A_TWO_6], [-2 * A_TWO_6], [1.7 * A_TWO_6], [-1.7 * A_TWO_6]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("re-schedule", *CREDIT)
