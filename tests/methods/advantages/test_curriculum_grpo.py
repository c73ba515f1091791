"""Curriculum GRPO (train long, think short): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# right and of the form, with half the length; wrong, with all of it; neither, with a quarter too much
SAMPLES = texts_of_group(
    r"<think>six</think><answer>\boxed{7}</answer>",
    r"<think>six</think><answer>\boxed{8}</answer>",
    "no",
    tokens=[[1] * 128, [1] * 256, [1] * 320],
)
REWARDS = (0.85, 0.4, 0.225)


def test_rewards_of_the_method() -> None:
    assert_rewards("curriculum-grpo", SAMPLES, REWARDS)
