"""F-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_FOUR, ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# (1 - 0.25)^0.5 = 0.8660254
CREDIT = (
    Step(reward=ONE_OF_FOUR, lengths=[1] * 4),
    [[0.8660254 * A_FOUR], *[[-0.8660254 * A_FOUR / 3]] * 3],
)


def test_advantages_of_the_method() -> None:
    assert_credit("f-grpo", *CREDIT)
