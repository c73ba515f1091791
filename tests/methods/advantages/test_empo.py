"""EMPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# shares of four
SAMPLES = texts_of_group(r"\boxed{7}", r"so \boxed{7}", r"\boxed{8}", "none")
REWARDS = (0.5, 0.5, 0.25, 0.25)


def test_rewards_of_the_method() -> None:
    assert_rewards("empo", SAMPLES, REWARDS)
