"""Variance-aware sampling (MMR1): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import sampled_prompts
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
CREDIT = (PAIR, [[A_TWO_6], [-A_TWO_6]])


def test_advantages_of_the_method() -> None:
    assert_credit("mmr1", *CREDIT)


def test_half_of_a_step_are_prompts_that_some_samples_solve() -> None:
    """Of 40 prompts ten are half solved; the others are solved by all or by none, and half of 20 are sampled."""
    rates = {str(n): 0.5 if n < 10 else float(n % 2) for n in range(40)}
    indices = sampled_prompts("mmr1", rates, 20)
    assert set(indices[:10]) == set(range(10))
    assert len(set(indices)) == 20
