"""Share-GRPO (R1-ShareVL): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_prompt_templates
from tests.configs.method_rows import A_TWO_6, ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# over all four 0.75 / 0.5 and -0.25 / 0.5; of the first wording 0.5 / 0.7071068, of the second nothing
CREDIT = (
    Step(reward=ONE_OF_FOUR, lengths=[1] * 4),
    [[1.499997 + A_TWO_6], [-0.499999 - A_TWO_6], [-0.499999], [-0.499999]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("r1-sharevl", *CREDIT)


def test_contexts_of_a_group() -> None:
    assert_prompt_templates("r1-sharevl", [None, "variant"])
