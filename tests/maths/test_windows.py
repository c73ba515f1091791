"""Windows: bounds, uniformity, and that a window is never short."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.maths.windows import (
    WINDOWS,
    all_window,
    fixed_window,
    progressive_window,
    random_subset,
    random_window,
    shortened,
)

NUM_SEEDS = 6000


def assert_uniform(counts: Counter, outcomes: list) -> None:
    """Every outcome and no other, each within 5 standard deviations of its share."""
    share = 1 / len(outcomes)
    slack = 5 * (NUM_SEEDS * share * (1 - share)) ** 0.5
    assert set(counts) == set(outcomes)
    assert all(abs(counts[outcome] - NUM_SEEDS * share) < slack for outcome in outcomes)


def test_all_and_fixed():
    assert all_window(4) == (0, 1, 2, 3)
    assert all_window(1) == (0,)
    assert fixed_window(10, start=3, size=2) == (3, 4)
    assert fixed_window(10, start=8, size=2) == (8, 9)


def test_random_window_is_uniform_over_every_start_that_fits():
    counts = Counter(random_window(10, size=3, low=2, high=8, seed=seed) for seed in range(NUM_SEEDS))
    assert_uniform(counts, [(start, start + 1, start + 2) for start in range(2, 6)])


def test_random_window_defaults_to_the_complete_schedule():
    starts = {random_window(5, size=2, seed=seed)[0] for seed in range(200)}
    assert starts == {0, 1, 2, 3}


def test_random_subset_is_uniform_over_every_subset():
    counts = Counter(random_subset(9, size=2, low=1, high=6, seed=seed) for seed in range(NUM_SEEDS))
    assert_uniform(counts, list(combinations(range(1, 6), 2)))


@pytest.mark.parametrize(("num_decisions", "size"), [(11, 6), (5, 3), (9, 5), (19, 11), (1, 1)])
def test_a_share_of_the_decisions_is_rounded_down_to_one_at_least(num_decisions: int, size: int):
    # int(0.6 * 11) = 6, the published DanceGRPO; int(0.6) = 0 is one decision
    window = random_subset(num_decisions, size=0.6, seed=3)
    assert window == random_subset(num_decisions, size=size, seed=3)
    assert random_subset(11, size=0.5, low=2, high=8, seed=3) == random_subset(11, size=3, low=2, high=8, seed=3)


def test_random_choices_depend_on_the_seed_alone():
    # pinned: a change here changes every run that resumes
    assert [random_window(20, size=4, seed=seed)[0] for seed in range(4)] == [13, 16, 14, 8]
    assert [random_subset(20, size=3, seed=seed) for seed in range(3)] == [(11, 13, 19), (1, 10, 16), (13, 14, 16)]


def test_progressive_window_is_mix_grpos_until_it_would_run_out():
    # 25 sampling steps, the last two not used: 23 decisions, window 4, moving by 1 every 25 iterations
    def window(step: int) -> tuple[int, ...]:
        return progressive_window(23, step=step, size=4, interval=25)

    assert window(0) == window(24) == (0, 1, 2, 3)
    assert window(25) == (1, 2, 3, 4)
    assert window(475) == (19, 20, 21, 22)
    # the reference code is short from iteration 500 and empty at 575
    assert window(500) == window(0)
    assert window(575) == window(75) == (3, 4, 5, 6)


def test_progressive_window_moves_by_its_stride_within_its_range():
    # 2..8 holds starts 2 and 4 (6 would need decision 8)
    starts = [progressive_window(12, step=step, size=3, stride=2, interval=1, low=2, high=8)[0] for step in range(5)]
    assert starts == [2, 4, 2, 4, 2]


def test_steps_after_a_window_are_as_few_as_mix_grpo_flash_makes_them():
    # 25 steps, the window 0..3: int((25 - 3) * 0.4) = 8 points from 1 - 4/25 = 0.84 to 0, which ends the run
    expected = [1.0, 0.96, 0.92, 0.88, 0.84, 0.72, 0.6, 0.48, 0.36, 0.24, 0.12]
    assert shortened(25, 3, 0.4) == pytest.approx(expected, abs=1e-12)
    # the window 19..22: int((25 - 22) * 0.4) = 1, of which there are two: from 1 - 23/25 to 0
    assert shortened(25, 22, 0.4) == pytest.approx([1 - i / 25 for i in range(23)] + [0.08], abs=1e-12)


@pytest.mark.parametrize(("last", "frac"), [(9, 0.5), (3, 1.0), (3, 0.0), (-1, 0.5)])
def test_fast_remainder_without_later_steps_raises(last: int, frac: float):
    with pytest.raises(ConfigError, match="reduces the steps"):
        shortened(10, last, frac)


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize(("size", "low", "high"), [(1, 0, None), (4, 0, None), (3, 2, 9), (10, 0, 10), (2, 8, 10)])
def test_progressive_window_is_never_short_or_outside(size: int, low: int, high: int | None, stride: int):
    for step in range(100):
        window = progressive_window(10, step=step, size=size, stride=stride, interval=3, low=low, high=high)
        assert window == tuple(range(window[0], window[0] + size))
        assert low <= window[0]
        assert window[-1] < (10 if high is None else high)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fixed_window(10, start=-1, size=2),
        lambda: fixed_window(10, start=10, size=1),
        lambda: random_window(10, size=2, low=5, high=5, seed=0),
        lambda: random_subset(10, size=2, low=0, high=11, seed=0),
        lambda: progressive_window(10, step=0, size=1, interval=1, low=6, high=3),
    ],
)
def test_a_range_outside_the_schedule_raises(call):
    with pytest.raises(ConfigError, match=r"outside the schedule.*choose 0 <= low < high <= \d+"):
        call()


@pytest.mark.parametrize("call", [lambda: all_window(0), lambda: fixed_window(0, start=0, size=1)])
def test_a_schedule_without_stochastic_decisions_names_the_remedy(call):
    with pytest.raises(ConfigError, match=r"no usable stochastic decision.*: set policy\.steps to 2 or more"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: fixed_window(10, start=8, size=3),
        lambda: random_window(10, size=5, low=2, high=6, seed=0),
        lambda: random_subset(3, size=4, seed=0),
        lambda: random_subset(3, size=0, seed=0),
        lambda: random_subset(3, size=-1, seed=0),
        lambda: progressive_window(3, step=0, size=4, interval=1),
    ],
)
def test_a_window_that_does_not_fit_raises(call):
    with pytest.raises(ConfigError, match=r"does not fit.*choose a size from 1 to \d"):
        call()


def test_a_subset_is_an_integer_or_a_share():
    with pytest.raises(ConfigError, match=r"integer number of decisions, or a share below 1, got 1\.5"):
        random_subset(3, size=1.5, seed=0)


@pytest.mark.parametrize("numbers", [{"step": -1, "interval": 1}, {"step": 0, "interval": 0}])
def test_a_progressive_window_refuses_impossible_numbers(numbers: dict[str, int]):
    with pytest.raises(ConfigError, match="interval >= 1"):
        progressive_window(5, size=2, **numbers)


def test_every_window_has_a_name():
    assert set(WINDOWS.values()) == {all_window, fixed_window, random_window, random_subset, progressive_window}


def test_steps_after_the_first_decision_may_be_fewer():
    assert shortened(4, 0, 0.5) == (1.0, 0.75)
