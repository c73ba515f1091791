"""DanceGRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import GROUP_STD, assert_advantages, assert_clamped_to_five, assert_loss

LOSS = 0.0056207227


def test_loss_of_the_method() -> None:
    assert_loss("dance-grpo", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("dance-grpo", GROUP_STD)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("dance-grpo")
