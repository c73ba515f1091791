"""Surrogates for samples of others: published numbers and slopes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.surrogates import Surrogate, shaped, shaped_probability
from mmgrpo.methods.off_policy.rl_plus import mixture
from mmgrpo.methods.surrogates.nft import nft

Weight: TypeAlias = Literal["none", "wrong_rate", "odds_root"]


def at(
    function: Callable[..., Surrogate], *, ratio: float = 1.0, probability: float = 0.5, advantage: float = 1.0
) -> tuple[float, float]:
    """The loss and its slope in the log-probability, at a ratio to the policy that sampled."""
    logprob_BT = torch.tensor([[math.log(probability)]], dtype=torch.float64, requires_grad=True)
    old_BT = logprob_BT.detach() - math.log(ratio)
    advantage_BT = torch.full((1, 1), advantage, dtype=torch.float64)
    surrogate = function((logprob_BT - old_BT).exp(), logprob_BT, advantage_BT)
    assert not (surrogate.low_BT | surrogate.high_BT).any()
    (slope_BT,) = torch.autograd.grad(surrogate.loss_BT.sum(), logprob_BT)
    return surrogate.loss_BT.item(), slope_BT.item()


def test_shaped_saturates():
    # w / (w + 0.1) at 1: 0.909091, slope 0.1 / 1.21 = 0.082645; an unlikely decision moves more: 0.1 w / (w + 0.1)^2
    assert at(partial(shaped, gamma=0.1)) == pytest.approx((-0.909091, -0.082645), abs=1e-6)
    assert at(partial(shaped, gamma=0.1), ratio=0.1) == pytest.approx((-0.5, -0.25))
    assert at(partial(shaped, gamma=0.1), advantage=-2.0) == pytest.approx((1.818182, 0.165289), abs=1e-6)


def test_shaped_probability_does_without_a_ratio():
    # p 0.1: 0.5 (Critique-GRPO), slope 0.1 * 0.1 / 0.04
    assert at(partial(shaped_probability, gamma=0.1), probability=0.1, ratio=7.0) == pytest.approx((-0.5, -0.25))


def test_mixture_of_two_authors():
    # p = p_old = 0.2: w 0.6, ratio 0.5, factor 0.8^0.5 = 0.894427 (RL-PLUS)
    assert at(partial(mixture, power=0.0), probability=0.2) == pytest.approx((-0.5, -0.5))
    expected = -0.5 * 0.894427
    assert at(partial(mixture, power=0.5), probability=0.2) == pytest.approx((expected, expected), abs=1e-6)
    # p 0.4, p_old 0.2: 0.8 / 0.8
    assert at(partial(mixture, power=0.0), probability=0.4, ratio=2.0) == pytest.approx((-1.0, -1.0))


@pytest.mark.parametrize(
    ("weight", "right", "wrong"),
    [
        ("none", -1.0, 1 / 3),
        # the policy gradient of the centered reward: -A
        ("wrong_rate", -0.75, 0.25),
        # GRPO with the population's spread: sqrt(3), 1 / sqrt(3)
        ("odds_root", -1.732051, 0.577350),
    ],
)
def test_nft_on_policy(weight: Weight, right: float, wrong: float):
    # p 0.25: A = 0.75 for the right, -0.25 for the wrong
    for advantage, slope in ((0.75, right), (-0.25, wrong)):
        assert at(partial(nft, weight=weight), advantage=advantage) == pytest.approx((0.0, slope), abs=1e-6)
    assert at(partial(nft, weight=weight), advantage=0.0) == (0.0, 0.0)


def test_nft_off_policy():
    # R 1.2, p 0.25, wrong: -log(0.7 / 0.75) = 0.068993, slope 0.3 / 0.7; at a floor of 1 the value stops alone
    wrong = partial(nft, weight="none", wrong_floor=0.1)
    assert at(wrong, ratio=1.2, advantage=-0.25) == pytest.approx((0.068993, 0.428571), abs=1e-6)
    assert at(partial(nft, weight="none"), ratio=1.2, advantage=-0.25) == pytest.approx((0.0, 0.4))
    assert at(partial(nft, weight="none", wrong_weight=0.5), ratio=1.2, advantage=-0.25) == pytest.approx((0.0, 0.2))
    assert at(partial(nft, weight="none"), ratio=2.0, advantage=0.75) == pytest.approx((-math.log(2), -1.0))
    # a floor of 1 for the right: slope R / 1
    assert at(partial(nft, weight="none", floor=1.0), ratio=0.5, advantage=0.75) == pytest.approx((0.0, -0.5))
    with pytest.raises(ConfigError, match="wrong_rate or odds_root"):
        at(partial(nft, weight=cast(Any, "all")))


@pytest.mark.parametrize(
    "function",
    [partial(shaped, gamma=0.1), partial(shaped_probability, gamma=0.1), partial(mixture, power=0.5), nft],
)
def test_no_advantage_is_no_loss_at_any_ratio(function: Callable[..., Surrogate]):
    log_ratio_BT = torch.linspace(-20, 20, 21)[None].requires_grad_()
    loss_BT = function(log_ratio_BT.exp(), log_ratio_BT * 5, torch.zeros(1, 21)).loss_BT
    (slope_BT,) = torch.autograd.grad(loss_BT.sum(), log_ratio_BT)
    nothing_BT: Tensor = torch.zeros(1, 21)
    assert torch.equal(loss_BT, nothing_BT)
    assert torch.equal(slope_BT, nothing_BT)
