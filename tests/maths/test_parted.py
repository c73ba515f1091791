"""Advantages within subgroups, and of several groups combined, by hand; other files test the laws."""

from __future__ import annotations

import functools
from math import sqrt

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import group_advantage, part_advantage
from mmgrpo.methods.advantages.riskpo import risk_advantage
from mmgrpo.methods.off_policy.hbpo import part_baseline_advantage
from mmgrpo.methods.off_policy.r1_sharevl import group_and_part_advantage
from mmgrpo.methods.off_policy.tree_opo import staged_advantage

NAN = float("nan")


def rewards(*groups: list[float]) -> Tensor:
    return torch.tensor(groups, dtype=torch.float64)


def close(actual: Tensor, expected: list[list[float]], *, atol: float = 2e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def test_a_variant_is_compared_with_all_and_with_itself() -> None:
    # all: mean 0.5, std sqrt(1 / 3), 0.8660254 each; of either part, 1 and 0: 0.5 / sqrt(1 / 2) = 0.7071068
    both = sqrt(3) / 2 + sqrt(2) / 2
    close(group_and_part_advantage(rewards([1, 0, 0, 1]), parts=2, eps=0), [[both, -both, -both, both]])
    # parts of equal rewards leave the comparison with all
    close(group_and_part_advantage(rewards([1, 1, 0, 0]), parts=2, eps=0), [[sqrt(3) / 2] * 2 + [-sqrt(3) / 2] * 2])


def test_a_part_is_compared_with_itself_alone() -> None:
    close(part_advantage(rewards([1, 0, 5, 5]), parts=2, eps=0), [[sqrt(2) / 2, -sqrt(2) / 2, 0, 0]])


def test_one_part_counts_its_group_twice() -> None:
    reward_PG = rewards([1, 0, 0, 1], [2, 3, 5, 7])
    close(group_and_part_advantage(reward_PG, parts=1, eps=1e-4), (2 * group_advantage(reward_PG)).tolist())


def test_a_part_is_compared_with_its_baseline() -> None:
    # means 1 and 0.5, baselines 0.75 and 0.75; all: mean 0.75, std 0.5
    close(
        part_baseline_advantage(rewards([1, 1, 1, 0]), baselines=(0.75, 0.75), weight=2.0, eps=0),
        [[0.5 + 0.5, 0.5 + 0.5, 0.5 - 0.5, -1.5 - 0.5]],
    )


def test_success_from_further_on_is_expected() -> None:
    # of four prefixes the first fails, the others succeed: V 3/4, 1, 1, 1 from the beginning and from later parts
    # r - V / 2: -3/8, 1/2, 1/2, 1/2, of mean 9/32
    close(staged_advantage(rewards([0, 1, 1, 1]), parts=4), [[-21 / 32, 7 / 32, 7 / 32, 7 / 32]])
    # a failure after a long prefix is worse than one after the bare prompt: V 1/2, 0
    close(staged_advantage(rewards([1, 0]), parts=2), [[0.75 - 0.375, -0.375]])


def test_missing_rewards_are_of_no_part() -> None:
    reward_PG = rewards([1, NAN, 0, 1])
    result_PG = staged_advantage(reward_PG, ~reward_PG.isnan(), parts=2)
    # V 2/3 and 1/2: 2/3, -1/4, 3/4 of mean 7/18
    close(result_PG, [[2 / 3 - 7 / 18, 0.0, -1 / 4 - 7 / 18, 3 / 4 - 7 / 18]])


def test_sheets_of_two_prompts() -> None:
    # sums 0, 1, 2, 3, quantiles 0.6 and 2.4: R = -3, -2.333333, -0.666667, 0; C = -3, 0, 0, 0; mixed, over 2.5:
    # -3, -0.933333, -0.266667, 0; std of the sheets 1.2909944, of the prompts 0.5773503 and 0.8164966
    reward_PG = rewards([0, 0, 1, 1], [0, 1, 1, 2])
    result_PG = risk_advantage(reward_PG, bundle=2, low=0.2, high=0.8, tail=1.5, eps=0)
    sheet = [-3 / 1.2909944, -0.9333333 / 1.2909944, -0.2666667 / 1.2909944, 0.0]
    close(result_PG, [[worth / 0.5773503 for worth in sheet], [worth / 0.8164966 for worth in sheet]])


def test_a_prompt_of_equal_rewards_is_not_divided() -> None:
    reward_PG = rewards([0, 0, 0, 0], [0, 1, 1, 2])
    result_PG = risk_advantage(reward_PG, bundle=2, low=0.2, high=0.8, eps=0)
    # sums 0, 1, 1, 2, quantiles 0.6 and 1.4: R = (-0.8, -0.4, -0.4, 0) / 0.6, C = -3, 0, 0, 0; std 0.8164966
    mixed = [(1.5 * -3 - 0.8 / 0.6) / 2.5, -0.4 / 0.6 / 2.5, -0.4 / 0.6 / 2.5, 0.0]
    close(result_PG[:1], [[worth / 0.8164966 for worth in mixed]])


def test_bundles_follow_each_other_and_the_last_may_be_smaller() -> None:
    reward_PG = rewards([0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 3])
    risk = functools.partial(risk_advantage, low=0.2, high=0.8)
    result_PG = risk(reward_PG, bundle=2)
    torch.testing.assert_close(result_PG[:2], risk(reward_PG[:2], bundle=2))
    torch.testing.assert_close(result_PG[2:], risk(reward_PG[2:], bundle=1))


def test_an_incomplete_sheet_has_no_value() -> None:
    reward_PG = rewards([0, NAN, 1, 1], [0, 1, 1, 2])
    result_PG = risk_advantage(reward_PG, ~reward_PG.isnan(), bundle=2)
    assert (result_PG[:, 1] == 0).all()
    assert (result_PG[:, 0] < 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (functools.partial(group_and_part_advantage, parts=3), "group of 4 has no 3 equal parts"),
        (functools.partial(staged_advantage, parts=0), "no 0 equal parts"),
        (functools.partial(part_advantage, parts=3), "no 3 equal parts"),
        (functools.partial(part_baseline_advantage, baselines=(1.0, 2.0, 3.0)), "no 3 equal parts"),
        (functools.partial(risk_advantage, low=0.8, high=0.2), "0 < low < high <= 1"),
    ],
)
def test_parts_that_do_not_divide_the_group_raise(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(rewards([0, 1, 2, 3]))
