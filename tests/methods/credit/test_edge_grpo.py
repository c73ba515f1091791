"""EDGE-GRPO (entropy-driven advantage): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# mean entropies 0.5 and 1.5 of mean 1: times 2 and 2 / 3
CREDIT = (
    Step(reward=ONE_OF_TWO, entropy=((0.25, 0.75), (1.0, 2.0))),
    [[2 * A_TWO] * 2, [-A_TWO / 1.5] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("edge-grpo", *CREDIT)
