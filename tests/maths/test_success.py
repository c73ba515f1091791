"""Advantages of rewards that say right or wrong, by hand; their common laws are tested with the other advantages."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.pass_rate import verdict_advantage
from mmgrpo.methods.advantages.bnpo import beta_advantage
from mmgrpo.methods.advantages.f_grpo import f_grpo_advantage
from mmgrpo.methods.advantages.grpo_lead import difficulty_weighted_advantage
from mmgrpo.methods.advantages.mapo import mapo_advantage
from mmgrpo.methods.advantages.pass_k_training import pass_at_k_advantage
from mmgrpo.methods.advantages.stable_grpo import noise_aware_advantage


def rewards(*groups: list[float]) -> Tensor:
    return torch.tensor(groups, dtype=torch.float64)


def close(actual: Tensor, expected: list[list[float]], *, atol: float = 2e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        (0.1, -1.0, [[0.1, -1, -1], [-1, -1, -1], [0.1, 0.1, 0.1]]),  # W-REINFORCE
        (0.0, -1.0, [[0, -1, -1], [-1, -1, -1], [0, 0, 0]]),  # NSR
        (1.0, 0.0, [[1, 0, 0], [0, 0, 0], [1, 1, 1]]),  # PSR, RAFT
    ],
)
def test_verdicts_do_not_look_at_the_group(right: float, wrong: float, expected: list[list[float]]):
    reward_PG = rewards([1, 0, 0], [0, 0, 0], [1, 1, 0.5])
    assert verdict_advantage(reward_PG, right=right, wrong=wrong).tolist() == expected


def test_groups_that_errors_may_explain_count_less():
    # q = 1/4, 1/2, 3/4 at f = 0.1: t = 0.1875, 0.5, 0.8125; w = 0.8 sqrt(0.15234375 / 0.1875) = 0.7211103 and 0.8
    result_PG = noise_aware_advantage(rewards([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]), eps=0)
    outer, middle = 0.7211103, 0.8 * math.sqrt(3) / 2
    close(
        result_PG,
        [
            [1.5 * outer] + [-0.5 * outer] * 3,
            [middle] * 2 + [-middle] * 2,
            [0.5 * outer] * 3 + [-1.5 * outer],
        ],
    )
    # 1 of 4 is no more than the quarter that errors make
    assert noise_aware_advantage(rewards([1, 0, 0, 0], [1, 1, 1, 0]), flips=0.25).tolist() == [[0.0] * 4] * 2
    torch.testing.assert_close(
        noise_aware_advantage(rewards([1, 0, 0, 0]), flips=0.0, eps=1e-4), group_advantage(rewards([1, 0, 0, 0]))
    )
    with pytest.raises(ConfigError, match=r"below 0\.5, got 0\.5"):
        noise_aware_advantage(rewards([1, 0]), flips=0.5)


def test_rare_successes_and_rare_failures_weigh_more():
    # w(x) = 0.4 + 1.1 / (1 + e^(10 (x - 0.75))): w(1/4) = 1.4926379, w(3/4) = 0.95
    result_PG = difficulty_weighted_advantage(rewards([1, -1, -1, -1], [1, 1, 1, 0]), eps=0)
    rare, common = 1.4926379, 0.95
    close(result_PG, [[1.5 * rare] + [-0.5 * common] * 3, [0.5 * common] * 3 + [-1.5 * rare]])
    # a right one that is long has less than another, and is pushed away from as the rare failures of an easy question
    (long,) = difficulty_weighted_advantage(rewards([1, 1, 0.9]), eps=0).tolist()
    assert long[2] == pytest.approx(-2 / math.sqrt(3) * (0.4 + 1.1 / (1 + math.exp(-7.5))))


def test_beta_factors_of_three_groups():
    # means 0.25, 0.5, 0.75: m = 1/2, v = 1/16, c = 4 - 1 = 3, a = b = 1.5, alpha = beta = 1.5;
    # Beta(p; 1.5, 1.5) = sqrt(p (1 - p)) / (pi / 8): 1.1026578 at 0.25 and 0.75, 1.2732395 at 0.5
    reward_PG = rewards([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0])
    outer, middle = 0.906900, 0.785398
    close(
        beta_advantage(reward_PG),
        [
            [0.75 * outer] + [-0.25 * outer] * 3,
            [0.5 * middle] * 2 + [-0.5 * middle] * 2,
            [0.25 * outer] * 3 + [-0.75 * outer],
        ],
    )


def test_beta_takes_rewards_of_another_range():
    reward_PG = rewards([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0])
    torch.testing.assert_close(beta_advantage(2 * reward_PG - 1, low=-1.0, high=1.0), beta_advantage(reward_PG))
    with pytest.raises(ShapeError, match="rewards from 0 to 1, got -1"):
        beta_advantage(2 * reward_PG - 1)
    with pytest.raises(ConfigError, match="must be below"):
        beta_advantage(reward_PG, low=1.0, high=1.0)


@pytest.mark.parametrize("reward_PG", [rewards([1, 0, 0]), rewards([1, 0, 0], [0, 1, 0])])
def test_beta_does_not_divide_for_equal_rates(reward_PG: Tensor):
    torch.testing.assert_close(beta_advantage(reward_PG), reward_PG - 1 / 3)


def test_beta_never_falls_below_the_uniform_density():
    # means 0 and 1: v = 1/2 > m (1 - m), so a and b are negative, alpha = beta = 1; both groups are equal anyway
    assert (beta_advantage(rewards([0, 0], [1, 1])) == 0).all()
    # means 0, 1, 1/2: v = 1/4 = m (1 - m), c = 0
    close(beta_advantage(rewards([0, 0], [1, 1], [0, 1])), [[0, 0], [0, 0], [-0.5, 0.5]])


def test_beta_leaves_groups_of_one_reward_out_of_the_fit():
    reward_PG = rewards([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1])
    valid_PG = torch.ones_like(reward_PG, dtype=torch.bool)
    valid_PG[3, 1:] = False
    advantage_PG = beta_advantage(reward_PG, valid_PG)
    assert (advantage_PG[3] == 0).all()
    torch.testing.assert_close(advantage_PG[:3], beta_advantage(reward_PG[:3]))


def test_beta_factor_has_a_limit():
    # means 0.5 forty times and 0.001: v is small, so the density at 0.001 is next to 0
    reward_PG = torch.cat([rewards([0.0, 1.0]).expand(40, 2), rewards([0.0, 0.002])])
    assert float(beta_advantage(reward_PG, limit=10.0)[40, 1]) == pytest.approx(0.01)
    assert float(beta_advantage(reward_PG)[40, 1]) > 0.01


def test_f_grpo_weighs_easy_groups_down():
    reward_PG = rewards([1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1])
    plain_PG = group_advantage(reward_PG)
    # right are 1/4 and 3/4: sqrt(3/4) and sqrt(1/4)
    factor_P1 = torch.tensor([[0.8660254], [0.5], [1.0], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(f_grpo_advantage(reward_PG), factor_P1 * plain_PG, rtol=0, atol=1e-7)
    torch.testing.assert_close(f_grpo_advantage(reward_PG, gamma=0.0), plain_PG)


def test_mapo_by_hand():
    # mu 1/4, sigma sqrt(3)/4, p 1/4, l = 1 - 3/4 = 1/4: 3/4 * sqrt(3) + 1/4 * 3 and -3/4 / sqrt(3) - 1/4
    close(mapo_advantage(rewards([1, 0, 0, 0]), eps=0.0), [[2.049038, -0.683013, -0.683013, -0.683013]])
    # the paper's mirrored groups: p 0 and 3/4. mu 0.075, l = 1: all over the mean; mu 0.975, sigma 0.0433013, l = 1/4
    mirrored = mapo_advantage(rewards([0, 0.1, 0.1, 0.1], [0.9, 1, 1, 1]), eps=0.0, at_least=0.95)
    low, high = 0.75 * 1.7320508 + 0.25 * 0.0769231, 0.75 * 0.5773503 + 0.25 * 0.0256410
    close(mirrored, [[-1] + [1 / 3] * 3, [-low, high, high, high]])


def test_mapo_refuses_negative_rewards():
    with pytest.raises(ShapeError, match="rewards from 0 to inf, got -1"):
        mapo_advantage(rewards([1, -1]))


@pytest.mark.parametrize(
    ("right", "size", "k", "good", "bad"),
    [
        # R = 1 - 3/6, s = 1/2; W = C(2, 1) / C(3, 1) = 2/3: 0.5 / 0.5 and (0.5 - 2/3) / 0.5
        (1, 4, 2, 1.0, -0.333333),
        # R = 1 - C(6, 4) / C(8, 4) = 11/14, s = 0.4103258; W = C(5, 3) / C(7, 3) = 2/7
        (2, 8, 4, 0.522233, -0.174078),
        # k = 1 is the reward over the population's spread: R = 1/4, W = 1
        (1, 4, 1, 1.732051, -0.577350),
    ],
)
def test_pass_at_k_by_hand(right: int, size: int, k: int, good: float, bad: float):
    reward_PG = rewards([1.0] * right + [0.0] * (size - right))
    close(pass_at_k_advantage(reward_PG, k=k), [[good] * right + [bad] * (size - right)], atol=1e-5)
    assert float(pass_at_k_advantage(reward_PG, k=k).sum()) == pytest.approx(0.0, abs=1e-5)


def test_pass_at_k_is_the_mean_over_all_subsets():
    """The advantage of a member is the mean, over the subsets of size k it is in, of those subsets' standard scores."""
    reward_G, k = [1.0, 1.0, 0.0, 0.0, 0.0], 3
    subsets = list(itertools.combinations(range(len(reward_G)), k))
    best = [max(reward_G[i] for i in subset) for subset in subsets]
    mean = sum(best) / len(best)
    std = math.sqrt(mean * (1 - mean))
    expected = [
        sum((b - mean) / std for b, subset in zip(best, subsets, strict=True) if i in subset) / math.comb(4, 2)
        for i in range(5)
    ]
    close(pass_at_k_advantage(rewards(reward_G), k=k, eps=0.0), [expected])


def test_pass_at_k_is_zero_for_groups_that_always_or_never_pass():
    # none right; three right of four, so that any two hold one; all right
    reward_PG = rewards([0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0])
    valid_PG = torch.ones_like(reward_PG, dtype=torch.bool)
    valid_PG[3, 1:] = False  # one reward is fewer than two
    assert (pass_at_k_advantage(reward_PG, valid_PG, k=2) == 0).all()


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_needs_k_members(k: int):
    with pytest.raises(ConfigError, match="choose k from 1 to the group size, 4"):
        pass_at_k_advantage(rewards([1, 0, 0, 0]), k=k)
