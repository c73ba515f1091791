"""RLVR under noisy verifiers, backward correction: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# 0.9 / 0.7 and -0.1 / 0.7, less their mean 0.5714286
SAMPLES = texts_of_group("7", "8")
REWARDS = (1.285714, -0.142857)


def test_rewards_of_the_method() -> None:
    assert_rewards("noisy-verifiers", SAMPLES, REWARDS, advantages=(0.714286, -0.714286))
