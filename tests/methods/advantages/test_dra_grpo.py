"""DRA-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# of four pairs of words each, the third has "boxed 7" in common with the first two, 1 of 7: 1 + 1 + 1/7, 1 + 2/7
SAMPLES = texts_of_group(r"so it is \boxed{7}", r"so it is \boxed{7}", r"\boxed{7} must be right", "no answer here")
REWARDS = (7 / 15, 7 / 15, 7 / 9, 0.0)


def test_rewards_of_the_method() -> None:
    assert_rewards("dra-grpo", SAMPLES, REWARDS)
