"""P3O (pairwise PPO): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# of a pair the reward less the other's
CREDIT = (Step(reward=(0.75, 0.5)), [[0.25, 0.25], [-0.25, -0.25]])


def test_advantages_of_the_method() -> None:
    assert_credit("p3o", *CREDIT)
