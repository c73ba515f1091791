"""PolicyRollout (TriMPI): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_prompt_templates
from tests.configs.method_rows import A_FOUR, ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

CREDIT = (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[A_FOUR], *[[-A_FOUR / 3]] * 3])


def test_advantages_of_the_method() -> None:
    assert_credit("trimpi", *CREDIT)


def test_half_of_a_group_is_sampled_in_the_context_and_trained_with_the_prompt() -> None:
    assert_prompt_templates("trimpi", [None, "policy"], train_without_template=True)
