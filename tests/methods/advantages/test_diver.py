"""DIVER (unique formulas): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# of the first's two formulas one is its own, of the second's four three, for which 0.42 is the most
SAMPLES = texts_of_group(r"$a$ $b$ \boxed{7}", r"$a$ $c$ $d$ $e$ \boxed{7}", r"$a$ \boxed{7}", r"$f$ \boxed{8}")
REWARDS = (1.42, 1.42, 1.0, 0.0)


def test_rewards_of_the_method() -> None:
    assert_rewards("diver", SAMPLES, REWARDS)
