"""ARM (Ada-GRPO): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# three of four with one form: 1 + (4 / 3 - 1), 1 + (4 - 1)
SAMPLES = texts_of_group(*["<COT> <answer>7</answer>"] * 2, "<COT> <answer>8</answer>", "<CODE> <answer>7</answer>")
REWARDS = (4 / 3, 4 / 3, 0.0, 4.0)


def test_rewards_of_the_method() -> None:
    assert_rewards("arm", SAMPLES, REWARDS)
