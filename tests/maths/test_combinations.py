"""Several rewards as one, by hand. Two rewards, one group of three; the second does not apply to the last member."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.combinations import (
    COMBINATIONS,
    geometric_mean,
    normalized_sum,
    weighted_sum,
)
from mmgrpo.maths.schedules import cosine, linear
from mmgrpo.methods.advantages.reward_model_ensembles import mean_minus_variance, minimum

REWARD_RPG = torch.tensor([[[1.0, 3.0, 2.0]], [[10.0, 30.0, math.nan]]])
VALID_RPG = ~REWARD_RPG.isnan()
WEIGHT_R = torch.tensor([2.0, 0.1])


def test_sum_takes_the_groups_mean_for_missing_rewards() -> None:
    # 2 * 1 + 0.1 * 10, 2 * 3 + 0.1 * 30, 2 * 2 + 0.1 * (10 + 30) / 2: a zero would make it 4
    assert weighted_sum(REWARD_RPG, WEIGHT_R, VALID_RPG).tolist() == [pytest.approx([3.0, 9.0, 6.0])]
    nobody = torch.tensor([[[True] * 3], [[False] * 3]])
    assert weighted_sum(REWARD_RPG, WEIGHT_R, nobody).tolist() == [[2.0, 6.0, 4.0]]


def test_sum_of_rewards_normalized_per_group() -> None:
    # first: (1, 3, 2) - 2 over sqrt(2/3); second: (10, 30) - 20 over 10, nothing for the last
    z = math.sqrt(1.5)
    result = normalized_sum(REWARD_RPG, WEIGHT_R, VALID_RPG, eps=0)
    assert result.tolist() == [pytest.approx([-2 * z - 0.1, 2 * z + 0.1, 0.0])]


def test_min_is_over_those_that_apply_and_take_part() -> None:
    # 2 r is 2, 6, 4; 0.1 r is 1, 3, -
    assert minimum(REWARD_RPG, WEIGHT_R, VALID_RPG).tolist() == [[1.0, 3.0, 4.0]]
    assert minimum(REWARD_RPG, torch.tensor([2.0, 0.0]), VALID_RPG).tolist() == [[2.0, 6.0, 4.0]]
    assert minimum(REWARD_RPG, WEIGHT_R, torch.zeros_like(VALID_RPG)).tolist() == [[0.0, 0.0, 0.0]]


def test_geometric_mean_needs_all_rewards() -> None:
    reward_RPG = torch.tensor([[[4.0, 4.0, 9.0, -1.0]], [[9.0, 0.0, 5.0, 4.0]]])
    valid_RPG = torch.tensor([[[True, True, True, True]], [[True, True, False, True]]])
    result_PG = geometric_mean(reward_RPG, torch.tensor([1.0, 1.0]), valid_RPG)
    assert result_PG.tolist() == [pytest.approx([6.0, 0.0, 9.0, 0.0])]  # 6 = sqrt(4 * 9)
    assert geometric_mean(reward_RPG[..., :1], torch.tensor([0.25, 1.0]), valid_RPG[..., :1]).item() == pytest.approx(
        3.0
    )


def test_mean_minus_variance() -> None:
    # means 1.5, 4.5, 4; population variances 0.25, 2.25, 0
    result = mean_minus_variance(REWARD_RPG, WEIGHT_R, VALID_RPG, factor=0.5)
    assert result.tolist() == [pytest.approx([1.375, 3.375, 4.0])]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_masked_rewards_are_not_read(name: str) -> None:
    numbers = {"factor": 0.5} if name == "mean_minus_variance" else {}
    other = REWARD_RPG.nan_to_num(nan=1e6)
    result = [COMBINATIONS[name](reward, WEIGHT_R, VALID_RPG, **numbers) for reward in (REWARD_RPG, other)]
    assert torch.equal(*result)
    assert result[0].isfinite().all()
    with pytest.raises(ShapeError, match=r"\(R, P, G\)"):
        COMBINATIONS[name](REWARD_RPG[0], WEIGHT_R, VALID_RPG, **numbers)


def test_a_weight_goes_along_a_line() -> None:
    assert [linear(s, start=1, end=0, begin=10, steps=10) for s in (0, 10, 15, 20, 99)] == [1, 1, 0.5, 0, 0]
    with pytest.raises(ConfigError, match="steps = 0"):
        linear(0, start=0, end=1, begin=3, steps=0)


def test_cosine_weights():
    # a third of the way: (1 + cos 60 degrees) / 2
    result = [cosine(step, start=1, end=0, begin=3, steps=6) for step in (0, 3, 5, 6, 9, 99)]
    assert result == pytest.approx([1, 1, 0.75, 0.5, 0, 0])
    assert cosine(5, start=2, end=4, steps=10) == pytest.approx(3)
    with pytest.raises(ConfigError, match="steps = 0"):
        cosine(0, start=0, end=1, begin=3, steps=0)
