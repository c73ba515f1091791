"""SAGE-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import GROUP_STD_EPS, assert_advantages, assert_clamped_to_five, assert_loss

# of one step the median is its own: weight 1; KL 4.6875e-4, times 1e-5
LOSS = 0.0056207227 + 4.6875e-9


def test_loss_of_the_method() -> None:
    assert_loss("sage-grpo", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("sage-grpo", GROUP_STD_EPS)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("sage-grpo")
