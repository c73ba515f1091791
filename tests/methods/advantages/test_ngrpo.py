"""NGRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# with one virtual sample of 1: mean 0.4; squares (0.36 * 2 + 0.16 * 3) / 4 = 0.3, sqrt 0.5477226
CREDIT = (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[1.0954431], *[[-0.7302954]] * 3])


def test_advantages_of_the_method() -> None:
    assert_credit("ngrpo", *CREDIT)
