"""Flow-GRPO-Fast with CPS: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import OVER_BATCH, assert_advantages, assert_clamped_to_five, assert_loss

# -mean (x - mean)^2 goes from -0.075 to -0.07865: log r = -0.00365, r = 0.9963566532: (-r + 0.99999) / 2
LOSS = 0.0018166734


def test_loss_of_the_method() -> None:
    assert_loss("flow-grpo-fast", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("flow-grpo-fast", OVER_BATCH)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("flow-grpo-fast")
