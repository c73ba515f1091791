"""TTRV: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group
from tests.configs.method_steps import config_of

# H = 0.5 log 2 + 0.5 log 4 = 1.0397208 of log 3 = 1.0986123 is 0.9463946, times 0.75
SAMPLES = texts_of_group("7", "7", "8", "9")
REWARDS = (-0.209796, -0.209796, -0.459796, -0.459796)


def test_rewards_of_the_method() -> None:
    assert_rewards("ttrv", SAMPLES, REWARDS)


def test_bound_of_negative_advantages_is_that_of_the_authors_fork_of_verl() -> None:
    surrogate = config_of("ttrv").objective.surrogate
    assert surrogate is not None
    assert (surrogate.name, surrogate.settings["bound"]) == ("dual_clipped", 3.0)  # clip_ratio_c in their scripts
