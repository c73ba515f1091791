"""Flow-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import OVER_BATCH, assert_advantages, assert_clamped_to_five, assert_loss

# log r = -0.01140625, r = 0.9886585546: (-r + 0.9999) / 2 = 0.0056207227; KL without dt 1.171875e-4, times 0.04
LOSS = 0.0056207227 + 4.6875e-6


def test_loss_of_the_method() -> None:
    assert_loss("flow-grpo", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("flow-grpo", OVER_BATCH)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("flow-grpo")
