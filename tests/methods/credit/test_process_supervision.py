"""GRPO with process supervision: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_FOUR
from tests.configs.method_steps import Step, assert_credit

# z = 1.499700 of the one step that is right, -0.499900 of the others, summed to the end
CREDIT = (
    Step(reward=(0, 0), parts=((1, 0), (0, 0))),
    [[A_FOUR - A_FOUR / 3, -A_FOUR / 3], [-2 * A_FOUR / 3, -A_FOUR / 3]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("process-supervision", *CREDIT)
