"""Pref-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# an image that beats both others, one that beats one, one that beats none: 0.5 over a deviation of 0.5
CREDIT = (Step(reward=(1.0, 0.5, 0.0), lengths=[1] * 3), [[1.0], [0.0], [-1.0]])


def test_advantages_of_the_method() -> None:
    assert_credit("pref-grpo", *CREDIT)
