"""Reward model ensembles (WCO): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_combined

SCORES = [[1.0, 3.0], [2.0, 0.0], [1.0, 1.0], [0.0, 5.0]]
REWARDS = (1.0, 0.0, 1.0, 0.0)


def test_combined_rewards_of_the_method() -> None:
    assert_combined("reward-model-ensembles", SCORES, REWARDS)
