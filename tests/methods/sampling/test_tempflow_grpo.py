"""TempFlow-GRPO (one branching step at a time): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import POPULATION, assert_advantages, assert_clamped_to_five, assert_loss

# times 2.25 * 0.4 = 0.9; KL 4.6875e-4, times 0.004
LOSS = 0.9 * 0.0056207227 + 1.875e-6


def test_loss_of_the_method() -> None:
    assert_loss("tempflow-grpo", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("tempflow-grpo", POPULATION)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("tempflow-grpo")
