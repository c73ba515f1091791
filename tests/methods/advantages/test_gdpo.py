"""GDPO (group reward-decoupled normalization): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_combined

# z = 0.5 / 0.7072068 = 0.7070068; sums z, -z and 2 z, -2 z, of standard deviation z sqrt(10 / 3) = 1.2908119
SCORES = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
REWARDS = (1.0, 0.0, 2.0, 0.0)


def test_combined_rewards_of_the_method() -> None:
    assert_combined("gdpo", SCORES, REWARDS, advantages=(0.547680, -0.547680, 1.095360, -1.095360), groups=[0, 0, 1, 1])
