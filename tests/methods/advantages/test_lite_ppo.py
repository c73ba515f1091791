"""Lite PPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit, assert_loss

# 1, 0, 1, 1 have the mean 0.75 and the deviation sqrt(0.75 / 3) = 0.5, of the batch; the second group is all equal.
A = 0.5 / (0.5 + 1e-6)
STEP = Step(reward=(1.0, 0.0, 1.0, 1.0), groups=(0, 0, 1, 1), lengths=(1, 2, 1, 1))


def test_advantages_are_over_the_deviation_of_the_batch() -> None:
    assert_credit("lite-ppo", STEP, [[A, A], [-A, -A], [0.0, 0.0], [0.0, 0.0]])


def test_loss_is_a_mean_over_tokens() -> None:
    """One token of A and two of -A, of five."""
    assert_loss("lite-ppo", STEP, -(A - 2 * A) / 5)
