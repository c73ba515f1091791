"""RL-ZVP: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# all right: 0.1 H; all wrong: -0.1 (1 - H)
CREDIT = (
    Step(reward=(1, 1, 0, 0), groups=(0, 0, 1, 1), entropy=[[0.2, 1.0, 0.5]] * 4),
    [[0.02, 0.1, 0.05], [0.02, 0.1, 0.05], [-0.08, 0.0, -0.05], [-0.08, 0.0, -0.05]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rl-zvp", *CREDIT)
