"""S-GRPO (stable, noise-aware): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# one of four right, a tenth of the verdicts wrong: t = 0.15 / 0.8, sqrt(0.15234375 / 0.1875) = 0.9013878, times 0.8
CREDIT = (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[0.7211103 * 1.5], *[[-0.7211103 * 0.5]] * 3])


def test_advantages_of_the_method() -> None:
    assert_credit("stable-grpo", *CREDIT)
