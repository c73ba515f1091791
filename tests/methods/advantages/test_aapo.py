"""AAPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# r - 1/4, and clip(r - 0, -0.2, 0.28) of a reference that is wrong
CREDIT = (
    Step(reward=ONE_OF_FOUR, lengths=[1] * 4, columns={"reference_reward": (0, 0, 0, 0)}),
    [[0.75 + 0.28], *[[-0.25]] * 3],
)


def test_advantages_of_the_method() -> None:
    assert_credit("aapo", *CREDIT)
