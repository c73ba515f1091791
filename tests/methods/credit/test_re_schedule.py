"""Re-Schedule (r-score): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.algorithm import schedules_of
from mmgrpo.memory import Memory
from tests.configs.method_rows import A_TWO_6
from tests.configs.method_steps import Step, assert_credit, config_of

PAIRS = (1.0, 0.0, 1.0, 0.0)
# the highest r-score weighs 2 in the first half of the run, one a fifth down 2 - 1.5 / 5
CREDIT = (
    Step(reward=PAIRS, groups=(0, 0, 1, 1), lengths=[1] * 4, columns={"rank": (0.0, 0.0, 0.2, 0.2)}),
    [[2 * A_TWO_6], [-2 * A_TWO_6], [1.7 * A_TWO_6], [-1.7 * A_TWO_6]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("re-schedule", *CREDIT)


def test_weights_are_swapped_at_half_of_the_run() -> None:
    config = config_of("re-schedule")
    numbers = [schedules_of(config).at(step, Memory()).config.advantage.estimators[0].settings for step in (169, 170)]
    assert [(item["at_zero"], item["at_one"]) for item in numbers] == [(2.0, 0.5), (0.5, 2.0)]
