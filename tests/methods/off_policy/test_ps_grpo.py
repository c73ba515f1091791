"""PS-GRPO (Con-RAG): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit
from tests.configs.pins.rows import A_TWO_6

# six wordings of two samples each: of the first 1 and 0, of deviation sqrt(1/2); the others are alike in themselves
CREDIT = (
    Step(reward=(1, 0, *[0.5] * 10), lengths=[1] * 12),
    [[A_TWO_6], [-A_TWO_6], *[[0.0]] * 10],
)


def test_advantages_of_the_method() -> None:
    assert_credit("ps-grpo", *CREDIT)
