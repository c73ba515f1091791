"""CDE (curiosity-driven exploration), the actor's bonus: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# 2 of right ones, and -mean log p up to a third
SAMPLES = texts_of_group(*[r"\boxed{7}"] * 2, *[r"\boxed{8}"] * 2, logprob=[-0.1, -2.0, -0.25, -0.5])
REWARDS = (2.1, 2.333333, 0.25, 0.333333)


def test_rewards_of_the_method() -> None:
    assert_rewards("cde", SAMPLES, REWARDS)
