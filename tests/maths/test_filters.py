"""Filters: the samples that they keep, by hand; ties, ragged groups, missing members."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.filters import FILTERS, best_and_worst, most_efficient
from mmgrpo.methods.selection.cppo import largest_advantages
from mmgrpo.methods.selection.d3s import most_varied
from mmgrpo.methods.selection.gfpo import among_most_efficient
from tests.maths.feedback_rows import feedback_of


def rows_of(advantages: list[float]) -> torch.Tensor:
    return torch.tensor(advantages)[:, None].expand(len(advantages), 3)


def test_the_largest_advantages_are_kept():
    # A 1.5, -0.5, -0.5, -0.5 at rate 0.5: the first and one other, the first of equals (CPPO)
    feedback = feedback_of([1, 0, 0, 0], [0] * 4)
    keep_B = largest_advantages(rate=0.5).keep(feedback, rows_of([1.5, -0.5, -0.5, -0.5]))
    assert keep_B.tolist() == [True, True, False, False]
    # ragged groups 3 and 2, mixed: floor(1.5) = 1 of each; at rate 0.9 one is left
    feedback = feedback_of([0] * 5, [0, 1, 0, 1, 0])
    advantage_BT = rows_of([0.1, -2.0, -0.3, 1.0, 0.2])
    assert largest_advantages(rate=0.5).keep(feedback, advantage_BT).tolist() == [False, True, True, False, False]
    assert largest_advantages(rate=0.9).keep(feedback, advantage_BT).tolist() == [False, True, True, False, False]
    assert largest_advantages(rate=0.0).keep(feedback, advantage_BT).all()
    with pytest.raises(ConfigError, match="from 0 to below 1"):
        largest_advantages(rate=1.0)


def test_a_tenth_of_ten_is_one():
    feedback = feedback_of([0.0] * 10, [0] * 10)
    assert largest_advantages(rate=0.9).keep(feedback, rows_of([0.1 * k for k in range(10)])).sum() == 1
    assert largest_advantages(rate=0.7).keep(feedback, rows_of([0.1 * k for k in range(10)])).sum() == 3


def test_the_most_varied_two_are_one_of_each_kind():
    # of 1, 0, 0, 0 the pairs of the largest variance hold the right one (D3S)
    keep_B = most_varied(count=2).keep(feedback_of([1, 0, 0, 0], [0] * 4), rows_of([1.5, -0.5, -0.5, -0.5]))
    assert keep_B.tolist() == [True, True, False, False]
    with pytest.raises(ConfigError, match="at least 2"):
        most_varied(count=1)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_most_varied_are_those_of_an_exhaustive_search(count: int):
    torch.manual_seed(count)
    for _ in range(20):
        advantage_B = torch.randn(6).double()
        keep_B = most_varied(count=count).keep(feedback_of([0] * 6, [0] * 6), advantage_B[:, None].expand(6, 3))
        assert keep_B.sum() == count
        highest = max(
            float(advantage_B[list(rows)].var(correction=0)) for rows in itertools.combinations(range(6), count)
        )
        assert float(advantage_B[keep_B].var(correction=0)) == pytest.approx(highest)


def test_the_best_and_the_worst():
    feedback = feedback_of([0.5, 0.9, 0.1, 0.9, 0.3, 0.2], [0, 0, 0, 0, 0, 1])
    keep_B = best_and_worst(best=2, worst=1).keep(feedback, torch.zeros(6, 3))
    assert keep_B.tolist() == [False, True, True, True, False, True]
    # equal rewards: the first is best, the next worst
    equal = feedback_of([1.0] * 4, [0] * 4)
    assert best_and_worst(best=1, worst=1).keep(equal, torch.zeros(4, 3)).tolist() == [True, True, False, False]
    assert best_and_worst(best=0, worst=1).keep(feedback, torch.zeros(6, 3)).tolist() == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(ConfigError, match="not both 0"):
        best_and_worst(best=0, worst=0)


LENGTHS = [[1] * 10 + [0] * 20, [1] * 20 + [0] * 10, [1] * 5 + [0] * 25, [1] * 30]


def test_the_shortest_are_compared_among_themselves():
    # rewards 1, 1, 0, 0, lengths 10, 20, 5, 30: rows 2 and 0, A = -+0.707107 (GFPO)
    feedback = feedback_of([1, 1, 0, 0], [0] * 4, mask=LENGTHS)
    assert most_efficient(count=2).keep(feedback, torch.zeros(4, 30)).tolist() == [True, False, True, False]
    result_BT = among_most_efficient(count=2, eps=0.0).assign(feedback, torch.zeros(4, 30))
    torch.testing.assert_close(result_BT[:, 0], torch.tensor([0.5**0.5, 0.0, -(0.5**0.5), 0.0]))
    # per decision: 0.1, 0.05, 0, 0: rows 0 and 1, whose rewards are equal
    per_BT = among_most_efficient(count=2, by="reward_per_decision").assign(feedback, torch.zeros(4, 30))
    assert not per_BT.any()
    keep_B = most_efficient(count=3, by="reward_per_decision").keep(feedback, torch.zeros(4, 30))
    assert keep_B.tolist() == [True, True, True, False]
    with pytest.raises(UnknownNameError, match="length, reward_per_decision"):
        most_efficient(count=2, by="tokens")
    with pytest.raises(ConfigError, match="at least one"):
        most_efficient(count=0)


OTHERS = {
    "after_first",
    "balanced_outcomes",
    "each_decision_once",
    "unlikely",
    "in_view",
    "within_curvature",
    "sampler_weight_within",
}
"""Those of decisions, and of views."""


@pytest.mark.parametrize("name", sorted(FILTERS.keys() - OTHERS))
def test_samples_that_are_no_members_are_not_kept_and_take_no_place(name: str):
    numbers = {
        "at_least_column": {"column": "bound"},
        "beyond": {"size": 0.5},
        "largest_advantages": {"rate": 0.0},
        "most_varied": {"count": 4},
        "best_and_worst": {"best": 2, "worst": 2},
        "most_efficient": {"count": 4},
        "no_void_turns": {"reward": "void"},
    }
    feedback = feedback_of(
        [math.nan, 1.0, 0.0, 0.5],
        [0] * 4,
        named_rewards={"void": [0.0] * 4},
        valid=[False, True, True, True],
        mask=[[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]],
    )
    feedback = replace(feedback, columns={"bound": torch.zeros(4)})
    keep_B = FILTERS[name](**numbers.get(name, {})).keep(feedback, rows_of([9.0, 1.0, -1.0, 9.0]))
    assert keep_B.tolist() == [False, True, True, False]


def test_filters_that_keep_everybody_keep_everybody():
    feedback = feedback_of([1.0, 0.0, 0.5], [0, 0, 1])
    advantage_BT = torch.randn(3, 1).expand(3, 3)
    for sample_filter in (
        largest_advantages(rate=0.0),
        most_varied(count=2),
        best_and_worst(best=1, worst=1),
        most_efficient(count=2),
    ):
        assert sample_filter.keep(feedback, advantage_BT).all()
