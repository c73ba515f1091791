"""Unlikeliness reward: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# ranks 3, 2, 1, 0 from the least likely on: 1 - 0.25 * 3 / 4 and 1 - 0.25 / 4 of those that are right
SAMPLES = texts_of_group("7", "8", "7", "8", logprob=[-1.0, -2.0, -3.0, -4.0])
REWARDS = (0.8125, 0.0, 0.9375, 0.0)


def test_rewards_of_the_method() -> None:
    assert_rewards("unlikeliness-reward", SAMPLES, REWARDS)
