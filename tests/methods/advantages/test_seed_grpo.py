"""SEED-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# answers a, a, b, c: S = (log 2 + 2 log 4) / 3 = 5 / 3 log 2 of at most 2 log 2: 1 - 0.02 * 5 / 6
CREDIT = (
    Step(reward=(1, 1, 0, 0), lengths=[1] * 4, named_rewards={"answers": (0.5, 0.5, 0.25, 0.25)}),
    [[0.4916667], [0.4916667], [-0.4916667], [-0.4916667]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("seed-grpo", *CREDIT)
