"""Intuitor: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group
from tests.configs.method_steps import config_of

# mean 1.5, deviations 1.5 and -0.5, of standard deviation 1
SAMPLES = texts_of_group(*"abcd", values=[{"certainty": value} for value in (3.0, 1.0, 1.0, 1.0)])
REWARDS = (3.0, 1.0, 1.0, 1.0)


def test_rewards_of_the_method() -> None:
    assert_rewards("intuitor", SAMPLES, REWARDS, advantages=(1.5, -0.5, -0.5, -0.5))


def test_bound_of_negative_advantages_is_that_of_the_authors_fork_of_verl() -> None:
    surrogate = config_of("intuitor").objective.surrogate
    assert surrogate is not None
    assert (surrogate.name, surrogate.settings["bound"]) == ("dual_clipped", 3.0)  # clip_ratio_c in their scripts
