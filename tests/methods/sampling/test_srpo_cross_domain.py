"""SRPO (history resampling): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import sampled_prompts
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
CREDIT = (PAIR, [[A_TWO], [-A_TWO]])


def test_advantages_of_the_method() -> None:
    assert_credit("srpo--cross-domain", *CREDIT)


def test_solved_prompts_are_left_out() -> None:
    rates = {str(n): 1.0 if n < 6 else 0.5 for n in range(10)}
    assert set(sampled_prompts("srpo--cross-domain", rates, 4)) == {6, 7, 8, 9}
