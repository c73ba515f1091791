"""P-GRPO (posterior): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_combined

# the reasoning counts where the outcome is 1
SCORES = [[1.0, 0.75], [1.0, 0.25], [0.0, 0.5]]
REWARDS = (1.75, 1.25, 0.0)


def test_combined_rewards_of_the_method() -> None:
    assert_combined("p-grpo", SCORES, REWARDS)
