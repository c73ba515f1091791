"""GRPO-Guard: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import POPULATION, assert_advantages, assert_clamped_to_five, assert_loss

# log r = (-0.01140625 + 4.6875e-4) * 0.4, r = 0.9956345564: (-r + 0.999998) / 2, times 1 / h = 4
LOSS = 0.0087268872


def test_loss_of_the_method() -> None:
    assert_loss("grpo-guard", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("grpo-guard", POPULATION)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("grpo-guard")
