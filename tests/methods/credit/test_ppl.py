"""Perplexity-based advantage shaping: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# 10 is beyond the quartiles 1.2 and 1.6 by more than 0.6; the others: mean 1.3, deviation sqrt(0.05) = 0.2236068,
# z = -1.341641, -0.447214, 0.447214, 1.341641 and 38.9; A of two right ones in five 0.6 / 0.5477236
CREDIT = (
    Step(reward=(1, 0, 0, 0, 1), old_logprob=[[-1.0], [-1.2], [-1.4], [-1.6], [-10.0]]),
    [
        [1.0954431 * 1.01341641],
        [-0.7302954 * 1.00447214],
        [-0.7302954 * 0.99552786],
        [-0.7302954 * 0.98658359],
        [1.0954431 * 0.8],
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("ppl", *CREDIT)
