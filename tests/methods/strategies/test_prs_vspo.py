"""PRS-VSPO: numbers worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from mmgrpo.maths.strategies import Setting
from mmgrpo.methods.strategies.prs_vspo import replace_by_task_value, task_values
from tests.configs.method_rounds import ExpectedRounds, assert_rounds, request_row
from tests.maths.round_rows import round_of

# one group of equal rewards, and one prompt of a value above 0: it is chosen
ROUNDS = ExpectedRounds(
    rewards=([1, 1, 1, 0], [0, 1]),
    requests=([(1, 2, 2, None)],),
    trained=([0, 0, 1, 1], [1, 1]),
)
REWARDS = [0, 0, 0, 1, 0, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, None]
FOUR = Setting(step=0, num_prompts=4, group_size=4)


def test_rounds_of_the_method() -> None:
    assert_rounds("prs-vspo", ROUNDS)


def test_value_is_the_distance_to_the_highest_reward_times_the_deviation() -> None:
    """R = 2: (2 - 1/4) sqrt(3/16) = 0.757772; (2 - 3/4) sqrt(3/16) = 0.541266; equal rewards have no deviation."""
    values = task_values(round_of(FOUR.groups(0, 4), REWARDS))
    assert values == pytest.approx({0: 0.7577722, 1: 0.5412659, 2: 0.0, 3: 0.0})


@pytest.mark.nightly
def test_two_choices_replace_two_groups_in_proportion_to_the_values() -> None:
    """0.757772 / (0.757772 + 0.541266) = 0.5833 of the choices are prompt 0: of 4,000, 2333 with a deviation of 31."""
    first, counts = round_of(FOUR.groups(0, 4), REWARDS), Counter[int]()
    strategy = replace_by_task_value()
    for seed in range(2000):
        requests = strategy.ask([first], Setting(step=0, num_prompts=4, group_size=4, seed=seed))
        assert sum(len(request.members) for request in requests) == 8
        assert all(request_row(request)[1] == 4 for request in requests)
        counts.update({request.prompt: len(request.members) // 4 for request in requests})
    assert set(counts) == {0, 1}
    assert counts[0] == pytest.approx(2333, abs=125)


@pytest.mark.parametrize("rewards", [[0, 1, 1, 0], [1, 1, 0, 0], [None] * 4])
def test_no_second_round_without_a_group_to_replace_or_to_choose(rewards: list[float | None]) -> None:
    two = Setting(step=0, num_prompts=2, group_size=2)
    assert replace_by_task_value().ask([round_of(two.groups(0, 2), rewards)], two) == ()
