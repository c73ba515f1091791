"""Advantages against published implementations' numbers and by hand."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.advantages import (
    ADVANTAGES,
    batch_scaled_advantage,
    clamp_advantage,
    group_advantage,
    leave_one_out_advantage,
    raw_advantage,
    unscaled_advantage,
)
from mmgrpo.methods.advantages.gdpo import gdpo_advantage
from mmgrpo.methods.advantages.ngrpo import ngrpo_advantage
from mmgrpo.methods.advantages.reinforce_rej import raw_if_mixed_advantage

NAN = float("nan")
COMPARED = ("group", "batch", "none", "leave_one_out")
"""The advantages that compare any rewards of a group with each other."""

GOLDEN_REWARD_PG = torch.tensor([[1, 2, 3, 6], [0, 0, 0, 0], [0.5, 0.5, 1, 1]], dtype=torch.float64)

# 16 samples, 2 rewards of weight 1 and 0.5, NaN = the reward does not apply
TRL_FIRST_PG = torch.tensor([[1, 0, 0, 1], [2, 2, 2, 2], [0.5, NAN, 1, 0], [NAN, NAN, NAN, 3]], dtype=torch.float64)
TRL_SECOND_PG = torch.tensor(
    [[0, 1, 3, 4], [5, 1, 0, 2], [NAN, NAN, 0.25, 0.75], [NAN, 1, NAN, NAN]], dtype=torch.float64
)


def trl_total() -> tuple[Tensor, Tensor]:
    """The weighted sum of the rewards that apply, and where any applies."""
    total_PG = TRL_FIRST_PG.nan_to_num() + 0.5 * TRL_SECOND_PG.nan_to_num()
    valid_PG = ~(TRL_FIRST_PG.isnan() & TRL_SECOND_PG.isnan())
    return total_PG.where(valid_PG, NAN), valid_PG


def close(actual: Tensor, expected: list[list[float]], *, atol: float = 2e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def test_group_advantage_is_flow_grpos_per_prompt():
    # group 1: mean 3, population std sqrt((4+1+0+9)/4) = 1.870829; -2 / 1.870929 = -1.068988
    close(
        group_advantage(GOLDEN_REWARD_PG, correction=0, eps=1e-4),
        [[-1.068988, -0.534494, 0, 1.603482], [0, 0, 0, 0], [-0.9996, -0.9996, 0.9996, 0.9996]],
    )


def test_group_advantage_is_dance_grpos():
    close(
        group_advantage(GOLDEN_REWARD_PG, correction=1, eps=1e-8),
        [[-0.92582, -0.46291, 0, 1.38873], [0, 0, 0, 0], [-0.866025, -0.866025, 0.866025, 0.866025]],
    )


def test_batch_scaled_advantage_is_flow_grpos_global_std():
    close(
        batch_scaled_advantage(GOLDEN_REWARD_PG, correction=0, eps=1e-4),
        [[-1.192498, -0.596249, 0, 1.788748], [0, 0, 0, 0], [-0.149062, -0.149062, 0.149062, 0.149062]],
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "group",
            [
                [-0.462867, -0.925734, 0, 1.388601],
                [1.388601, -0.462867, -0.925734, 0],
                [-0.414678, 0, 1.140363, -0.725686],
                [0, -0.707067, 0, 0.707067],
            ],
        ),
        (
            "batch",
            [
                [-0.383214, -0.766428, 0, 1.149642],
                [1.149642, -0.383214, -0.766428, 0],
                [-0.127738, 0, 0.351279, -0.223541],
                [0, -0.958035, 0, 0.958035],
            ],
        ),
        (
            "none",
            [[-0.5, -1, 0, 1.5], [1.5, -0.5, -1, 0], [-0.166667, 0, 0.458333, -0.291667], [0, -1.25, 0, 1.25]],
        ),
    ],
)
def test_advantages_are_trls_with_missing_rewards(name: str, expected: list[list[float]]):
    close(ADVANTAGES[name](*trl_total()), expected)


def test_gdpo_is_trls_with_missing_rewards():
    reward_RPG = torch.stack([TRL_FIRST_PG, TRL_SECOND_PG])
    weight_R = torch.tensor([1, 0.5], dtype=torch.float64)
    close(
        gdpo_advantage(reward_RPG, weight_R, ~reward_RPG.isnan(), correction=1),
        [
            [0.477158, -1.709165, -0.887827, 2.119834],
            [1.041245, -0.347082, -0.694163, 0],
            [0, 0, 0.969283, -0.969283],
            [0, 0, 0, 0],
        ],
    )


GDPO_REWARD_RPG = torch.tensor(
    [[[1, 0, 1, 0], [0.2, 0.4, 0.6, 0.8]], [[0, 1, 1, 0], [0.9, 0.1, 0.5, 0.5]]], dtype=torch.float64
)
GDPO_WEIGHT_R = torch.tensor([1, 0.5], dtype=torch.float64)


def test_gdpo_standardizes_each_reward_then_the_sum():
    close(
        gdpo_advantage(GDPO_REWARD_RPG, GDPO_WEIGHT_R),
        [[0.478502, -0.478502, 1.435507, -1.435507], [-0.607038, -1.10448, 0.42788, 1.283639]],
    )


def test_gdpo_differs_from_the_group_advantage_of_the_sum():
    total_PG = torch.einsum("r,rpg->pg", GDPO_WEIGHT_R, GDPO_REWARD_RPG)
    close(
        group_advantage(total_PG, correction=0),
        [[0.447134, -0.447134, 1.341401, -1.341401], [-0.447014, -1.341041, 0.447014, 1.341041]],
    )


def test_gdpo_does_not_depend_on_a_rewards_scale():
    scale_R11 = torch.tensor([1.0, 1000.0], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(
        gdpo_advantage(GDPO_REWARD_RPG * scale_R11, GDPO_WEIGHT_R, eps=0),
        gdpo_advantage(GDPO_REWARD_RPG, GDPO_WEIGHT_R, eps=0),
    )


def test_leave_one_out_by_hand():
    # [1, 2, 6]: 1 - (2+6)/2 = -3, 2 - (1+6)/2 = -1.5, 6 - (1+2)/2 = 4.5
    close(leave_one_out_advantage(torch.tensor([[1.0, 2.0, 6.0]])), [[-3, -1.5, 4.5]])


def test_leave_one_out_leaves_missing_rewards_out():
    # valid are 1, 2 and 6; no row counts the third
    valid_PG = torch.tensor([[True, True, False, True]])
    close(leave_one_out_advantage(torch.tensor([[1.0, 2.0, 99.0, 6.0]]), valid_PG), [[-3, -1.5, 0, 4.5]])


@pytest.mark.parametrize("name", COMPARED)
def test_advantages_sum_to_zero_over_every_group(name: str):
    generator = torch.Generator().manual_seed(0)
    reward_PG = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    valid_PG = torch.rand(5, 8, generator=generator) > 0.3
    advantage_PG = ADVANTAGES[name](reward_PG, valid_PG)
    torch.testing.assert_close(advantage_PG.sum(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (advantage_PG[~valid_PG] == 0).all()
    assert (advantage_PG[valid_PG] != 0).all()


@pytest.mark.parametrize("name", COMPARED)
def test_equal_or_single_rewards_get_exact_zeros(name: str):
    # the mean of three times 0.9 is not 0.9 in float32: equality must not hang on that
    reward_PG = torch.tensor([[0.9, 0.9, 0.9], [NAN, 7.0, NAN], [NAN, NAN, NAN], [1.0, 2.0, 3.0]])
    advantage_PG = ADVANTAGES[name](reward_PG, ~reward_PG.isnan())
    assert (advantage_PG[:3] == 0).all()
    assert (advantage_PG[3, 0] < 0) & (advantage_PG[3, 1] == 0) & (advantage_PG[3, 2] > 0)


def test_raw_rewards_are_the_advantages():
    reward_PG = torch.tensor([[1.0, 1.0, 1.0], [0.5, NAN, -2.0], [0.0, 0.0, 0.0], [1.0, NAN, NAN]])
    close(raw_if_mixed_advantage(reward_PG, ~reward_PG.isnan()), [[0, 0, 0], [0.5, 0, -2], [0, 0, 0], [0, 0, 0]])


def test_raw_rewards_are_not_centered():
    reward_PG = torch.tensor([[1.0, 1.0, 1.0], [0.5, NAN, -2.0]])
    close(raw_advantage(reward_PG, ~reward_PG.isnan()), [[1, 1, 1], [0.5, 0, -2]])


def test_ngrpo_by_hand():
    # with one more 1: mean 1/5, std sqrt((4 * 0.04 + 0.64) / 4) = 0.4472136; -0.2 / 0.4472136
    close(ngrpo_advantage(torch.zeros(1, 4, dtype=torch.float64)), [[-0.447214] * 4])
    # with one more 1: mean 2/5, std sqrt((2 * 0.36 + 3 * 0.16) / 4) = 0.5477226; 0.6 / 0.5477226 and -0.4 / 0.5477226
    close(
        ngrpo_advantage(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)),
        [[1.095445, -0.730297, -0.730297, -0.730297]],
    )


def test_ngrpo_is_silent_where_all_members_have_the_highest_reward():
    reward_PG = torch.tensor([[0.9, 0.9, 0.9], [0.9, NAN, NAN], [0.0, NAN, NAN]])
    advantage_PG = ngrpo_advantage(reward_PG, ~reward_PG.isnan(), highest=0.9)
    assert (advantage_PG[:2] == 0).all()
    # a lone 0 and the imagined 0.9: mean 0.45, std 0.9 / sqrt(2); -0.45 / 0.6363961
    close(advantage_PG[2:], [[-0.707106, 0, 0]])


def test_gdpo_gives_zeros_for_groups_of_equal_rewards():
    reward_RPG = torch.tensor([[[0.9, 0.9, 0.9], [1.0, 0.0, 2.0]], [[0.3, 0.3, 0.3], [NAN, 4.0, NAN]]])
    advantage_PG = gdpo_advantage(reward_RPG, torch.tensor([1.0, 1.0]), ~reward_RPG.isnan())
    assert (advantage_PG[0] == 0).all()
    # group 2: z of the first reward alone, (0, -1, 1) / 0.8166; the lone 4.0 adds 0; batch std sqrt(2 * 1.2246^2 / 6)
    close(advantage_PG[1:], [[0, -1.732051, 1.732051]], atol=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        group_advantage,
        batch_scaled_advantage,
        unscaled_advantage,
        leave_one_out_advantage,
        functools.partial(gdpo_advantage, weight_R=torch.ones(1)),
    ],
)
@pytest.mark.parametrize("reward", [torch.zeros(4), torch.zeros(3, 1), torch.zeros(2, 2, dtype=torch.int64)])
def test_rewards_of_other_shapes_raise(call, reward: Tensor):
    with pytest.raises(ShapeError, match="group of at least 2"):
        call(reward)


def test_a_mask_of_another_shape_raises():
    with pytest.raises(ShapeError, match="valid must be bool"):
        group_advantage(torch.zeros(2, 4), torch.ones(2, 4))
    with pytest.raises(ShapeError, match="one per reward"):
        gdpo_advantage(torch.zeros(2, 2, 4), torch.ones(3))


def test_clamp_advantage():
    close(clamp_advantage(torch.tensor([[-7.0, -5.0, 0.5, 6.0]]), limit=5), [[-5, -5, 0.5, 5]])
    with pytest.raises(ConfigError, match="above 0"):
        clamp_advantage(torch.zeros(1), limit=0)
