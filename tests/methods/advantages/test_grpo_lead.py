"""GRPO-LEAD: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# 0.4 + 1.1 / (1 + e^(10 (0.25 - 0.75))) = 1.4926379 for the right one, 0.4 + 1.1 / 2 for the wrong ones
CREDIT = (Step(reward=(1.0, -1.0, -1.0, -1.0), lengths=[1] * 4), [[1.4926379 * 1.5], *[[-0.95 * 0.5]] * 3])


def test_advantages_of_the_method() -> None:
    assert_credit("grpo-lead", *CREDIT)
