"""PS-GRPO (Con-RAG): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_prompt_templates
from tests.configs.method_rows import A_TWO_6
from tests.configs.method_scores import assert_rewards, texts_of_group
from tests.configs.method_steps import Step, assert_credit

# six wordings of two samples each: of the first 1 and 0, of deviation sqrt(1/2); the others are alike in themselves
CREDIT = (
    Step(reward=(1, 0, *[0.5] * 10), lengths=[1] * 12),
    [[A_TWO_6], [-A_TWO_6], *[[0.0]] * 10],
)


def test_advantages_of_the_method() -> None:
    assert_credit("ps-grpo", *CREDIT)


def test_contexts_of_a_group() -> None:
    assert_prompt_templates("ps-grpo", [None, "second", "third", "fourth", "fifth", "sixth"])


# two wordings: the second text has one word of two and no pair in common with the others, sqrt(1/2 * 1/2)
SAMPLES = texts_of_group("red fox", "red cat", "red fox", "red fox", prompt_template=[None, None, "second", "second"])
REWARDS = (1.0, 0.5, 0.75, 0.75)


def test_rewards_of_the_method() -> None:
    assert_rewards("ps-grpo", SAMPLES, REWARDS)
