"""Surrogates: values by hand, bounds, gradients."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from mmgrpo.maths import surrogates
from mmgrpo.maths.surrogates import SURROGATES, Surrogate

BOUND = {
    "clipped": functools.partial(surrogates.clipped, low=0.2, high=0.3),
    "dual_clipped": functools.partial(surrogates.dual_clipped, low=0.2, high=0.3, bound=2.0),
    "two_sided_clipped": functools.partial(surrogates.two_sided_clipped, low=0.2, high=0.3, delta=2.0),
    "policy_gradient": surrogates.policy_gradient,
    "one_sided": functools.partial(SURROGATES["one_sided"], low=0.2, high=0.3),
    "cispo": functools.partial(SURROGATES["cispo"], low=0.2, high=0.3),
    "sapo": functools.partial(SURROGATES["sapo"], positive_temperature=1.0, negative_temperature=1.05),
    "vespo": functools.partial(
        SURROGATES["vespo"], positive_power=2.0, positive_decay=3.0, negative_power=3.0, negative_decay=2.0
    ),
    "unclipped": surrogates.unclipped,
    "gppo": functools.partial(SURROGATES["gppo"], low=0.2, high=0.3, bound=2.0),
    "spo": functools.partial(SURROGATES["spo"], eps=0.2),
}
OFF_POLICY = {"nft", "shaped", "shaped_probability", "mixture"}
"""Tested in test_foreign_surrogates.py: on policy they are no policy gradient."""
# ratios below, within, above the bounds, and above the cap; each with A = 2, -2 and 0
RATIO_BT = torch.tensor([[0.5, 1.1, 1.5, 3.0]]).repeat(3, 1)
LOGPROB_BT = torch.tensor([[-1.0, -2.0, -3.0, -4.0]]).repeat(3, 1)
ADVANTAGE_BT = torch.tensor([[2.0], [-2.0], [0.0]]).expand(3, 4)
NEVER = [[0, 0, 0, 0]] * 3


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("name", "loss", "low", "high"),
    [
        # A > 0: -2 min(r, 1.3); A < 0: 2 max(r, 0.8)
        (
            "clipped",
            [[-1.0, -2.2, -2.6, -2.6], [1.6, 2.2, 3.0, 6.0], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]],
        ),
        # as clipped, but no more than 2 * 2 where A < 0
        (
            "dual_clipped",
            [[-1.0, -2.2, -2.6, -2.6], [1.6, 2.2, 3.0, 4.0], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
        ),
        (
            "two_sided_clipped",
            [[-1.0, -2.2, -2.6, -2.6], [1.6, 2.2, 3.0, 4.0], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
        ),
        ("policy_gradient", [[2.0, 4.0, 6.0, 8.0], [-2.0, -4.0, -6.0, -8.0], [0, 0, 0, 0]], NEVER, NEVER),
        # -A logprob, none above 1.3 where A > 0 and below 0.8 where A < 0
        (
            "one_sided",
            [[2.0, 4.0, 0.0, 0.0], [0.0, -4.0, -6.0, -8.0], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]],
        ),
        # -A logprob times 0.8, 1.1, 1.3, 1.3
        (
            "cispo",
            [[1.6, 4.4, 7.8, 10.4], [-1.6, -4.4, -7.8, -10.4], [0, 0, 0, 0]],
            [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]],
        ),
        (
            "sapo",
            [
                [-8 * sigmoid(x) for x in (-0.5, 0.1, 0.5, 2.0)],
                [8 / 1.05 * sigmoid(1.05 * x) for x in (-0.5, 0.1, 0.5, 2.0)],
                [0, 0, 0, 0],
            ],
            NEVER,
            NEVER,
        ),
        # -A logprob times r^2 exp(3 (1 - r)) where A >= 0, times r^3 exp(2 (1 - r)) elsewhere
        (
            "vespo",
            [
                [
                    -2 * logprob * r**2 * math.exp(3 - 3 * r)
                    for r, logprob in ((0.5, -1), (1.1, -2), (1.5, -3), (3, -4))
                ],
                [2 * logprob * r**3 * math.exp(2 - 2 * r) for r, logprob in ((0.5, -1), (1.1, -2), (1.5, -3), (3, -4))],
                [0, 0, 0, 0],
            ],
            NEVER,
            NEVER,
        ),
        ("unclipped", [[-1.0, -2.2, -3.0, -6.0], [1.0, 2.2, 3.0, 6.0], [0, 0, 0, 0]], NEVER, NEVER),
        # the values of dual_clipped
        (
            "gppo",
            [[-1.0, -2.2, -2.6, -2.6], [1.6, 2.2, 3.0, 4.0], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
        ),
        # 5 (r - 1)^2 on top of -A r: 1.25, 0.05, 1.25, 20
        ("spo", [[0.25, -2.15, -1.75, 14.0], [2.25, 2.25, 4.25, 26.0], [0, 0, 0, 0]], NEVER, NEVER),
    ],
)
def test_values_by_hand(name: str, loss: list, low: list, high: list):
    surrogate = BOUND[name](RATIO_BT, LOGPROB_BT, ADVANTAGE_BT)
    torch.testing.assert_close(surrogate.loss_BT, torch.tensor(loss))
    assert surrogate.low_BT.int().tolist() == low
    assert surrogate.high_BT.int().tolist() == high


def test_every_surrogate_is_tested():
    assert SURROGATES.keys() == BOUND.keys() | OFF_POLICY


def test_cispo_without_a_floor_keeps_small_ratios():
    surrogate = SURROGATES["cispo"](RATIO_BT, LOGPROB_BT, ADVANTAGE_BT, low=None, high=0.3)
    torch.testing.assert_close(surrogate.loss_BT[0], torch.tensor([1.0, 4.4, 7.8, 10.4]))
    assert not surrogate.low_BT.any()


def test_a_cap_below_the_upper_bound_acts_as_the_bound():
    # delta 1.2 < 1 + high: A > 0 stops at 1.2; A < 0 only where min(r, delta) and clip(r) are both flat, above 1.3
    ratio_BT = torch.tensor([[1.25, 1.25, 1.4]], requires_grad=True)
    surrogate = surrogates.two_sided_clipped(
        ratio_BT, torch.zeros(1, 3), torch.tensor([[1.0, -1.0, -1.0]]), low=0.2, high=0.3, delta=1.2
    )
    torch.testing.assert_close(surrogate.loss_BT, torch.tensor([[-1.2, 1.25, 1.3]]))
    (grad_BT,) = torch.autograd.grad(surrogate.loss_BT.sum(), ratio_BT)
    assert surrogate.high_BT.tolist() == (grad_BT == 0).tolist() == [[True, False, True]]


def slopes(name: str, logprob_BT: Tensor, old_BT: Tensor, advantage_BT: Tensor) -> tuple[Surrogate, Tensor]:
    logprob_BT = logprob_BT.clone().requires_grad_()
    surrogate = BOUND[name]((logprob_BT - old_BT).exp(), logprob_BT, advantage_BT)
    return surrogate, torch.autograd.grad(surrogate.loss_BT.sum(), logprob_BT)[0]


@pytest.mark.parametrize("name", [name for name in BOUND if name != "gppo"])
def test_gradients_match_finite_differences(name: str):
    # away from the kinks at ratios 0.8, 1.3 and 2
    log_ratio_BT = torch.tensor([[0.4, 0.7, 0.95, 1.15, 1.6, 2.5]], dtype=torch.float64).log().repeat(2, 1)
    advantage_BT = torch.tensor([[1.3], [-0.7]], dtype=torch.float64).expand(2, 6)
    old_BT = torch.full((2, 6), -1.5, dtype=torch.float64)
    ratio_BT = log_ratio_BT.exp()

    def loss_BT(logprob_BT: Tensor) -> Tensor:
        # the weights of cispo and vespo are constants to their gradients, so they are held fixed here
        live_BT = ratio_BT if name in ("cispo", "vespo") else (logprob_BT - old_BT).exp()
        return BOUND[name](live_BT, logprob_BT, advantage_BT).loss_BT

    assert torch.autograd.gradcheck(loss_BT, (old_BT + log_ratio_BT).requires_grad_())


def test_cispo_weight_has_no_gradient():
    # d/dlogprob of -A sg(w) logprob is -A w: 1.3 at ratio 1.5 with A = -1, although the ratio depends on logprob
    _, grad_BT = slopes("cispo", torch.tensor([[1.5]]).log(), torch.zeros(1, 1), torch.tensor([[-1.0]]))
    torch.testing.assert_close(grad_BT, torch.tensor([[1.3]]))


def test_vespo_weighs_most_where_power_and_decay_balance_and_bears_any_ratio():
    # r^2 exp(3 - 3 r) is largest at r = 2 / 3
    weight_BT = -surrogate_of("vespo", [0.6, 2 / 3, 0.7]).loss_BT
    assert weight_BT.argmax() == 1
    assert weight_BT[0, 1].item() == pytest.approx(4 / 9 * math.e)
    far = surrogate_of("vespo", [math.exp(-20), math.exp(20)])
    assert far.loss_BT.abs().max().item() < 1e-15


def surrogate_of(name: str, ratios: list[float]) -> Surrogate:
    """With advantage and log-probability 1."""
    ratio_BT = torch.tensor([ratios])
    return BOUND[name](ratio_BT, torch.ones_like(ratio_BT), torch.ones_like(ratio_BT))


def test_sapo_gradient_fades_and_stays():
    # sigmoid'(tau (r - 1)) * 4 * r at r = e: 4 s (1 - s) e with s = sigmoid(e - 1)
    s = sigmoid(math.e - 1)
    _, grad_BT = slopes("sapo", torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    assert grad_BT.item() == pytest.approx(-4 * s * (1 - s) * math.e, rel=1e-5)


def test_gppo_keeps_a_gradient_of_the_size_of_the_bound():
    # r 2, A 1, high 0.28: loss -1.28, slope -1.28 where PPO has 0; r 0.5, A -1, low 0.2: 0.8 and 0.8 (Klear)
    for ratio, advantage, expected in ((2.0, 1.0, -1.28), (0.5, -1.0, 0.8)):
        logprob_BT = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
        advantage_BT = torch.full((1, 1), advantage, dtype=torch.float64)
        surrogate = SURROGATES["gppo"](logprob_BT.exp(), logprob_BT, advantage_BT, low=0.2, high=0.28)
        (grad_BT,) = torch.autograd.grad(surrogate.loss_BT.sum(), logprob_BT)
        assert surrogate.loss_BT.item() == pytest.approx(expected)
        assert grad_BT.item() == pytest.approx(expected)
        assert bool((surrogate.low_BT | surrogate.high_BT).all())
    # PPO's ceiling for A < 0 stays flat
    _, grad_BT = slopes("gppo", torch.tensor([[3.0]]).log(), torch.zeros(1, 1), -torch.ones(1, 1))
    assert grad_BT.item() == 0


def test_spo_pulls_back_beyond_its_trust_region():
    # r 1.5, A 1, eps 0.2: -1.5 + 0.25 / 0.4 = -0.875; d/dr = -1 + 0.5 / 0.2 = 1.5; lowest at 1.2
    ratio_BT = torch.tensor([[1.5, 1.2]], requires_grad=True)
    surrogate = SURROGATES["spo"](ratio_BT, ratio_BT.detach().log(), torch.ones(1, 2), eps=0.2)
    (grad_BT,) = torch.autograd.grad(surrogate.loss_BT.sum(), ratio_BT)
    assert surrogate.loss_BT[0, 0].item() == pytest.approx(-0.875)
    assert grad_BT[0].tolist() == pytest.approx([1.5, 0.0], abs=1e-6)


@pytest.mark.parametrize("name", ["clipped", "dual_clipped", "two_sided_clipped", "cispo", "gppo"])
def test_equal_bounds_per_decision_equal_the_number_bitwise(name: str):
    torch.manual_seed(0)
    ratio_BT = (torch.randn(40, 40) * 0.5).exp()
    ratio_BT[0, 0], ratio_BT[0, 1] = 0.8, 1.3
    advantage_BT, logprob_BT = torch.randn(40, 40), -torch.rand(40, 40)
    matrices = {key: torch.full((40, 40), number, dtype=torch.float64) for key, number in (("low", 0.2), ("high", 0.3))}

    def result(function) -> tuple[Surrogate, Tensor]:
        leaf_BT = ratio_BT.clone().requires_grad_()
        logprob_leaf_BT = leaf_BT * 0 + logprob_BT
        surrogate = function(leaf_BT, logprob_leaf_BT, advantage_BT)
        return surrogate, torch.autograd.grad(surrogate.loss_BT.sum(), leaf_BT)[0]

    (plain, plain_BT), (each, each_BT) = result(BOUND[name]), result(functools.partial(BOUND[name], **matrices))
    assert torch.equal(plain.loss_BT, each.loss_BT)
    assert each.loss_BT.dtype == torch.float32
    assert torch.equal(plain.low_BT, each.low_BT)
    assert torch.equal(plain.high_BT, each.high_BT)
    assert torch.equal(plain_BT, each_BT)


@pytest.mark.parametrize("name", ["clipped", "two_sided_clipped"])
def test_a_ratio_on_its_bound_has_half_of_the_gradient(name: str):
    # max(-A r, -A bound) with both arms equal: torch.maximum halves the gradient, the bounded arm has none on its bound
    ratio_BT = torch.tensor([[0.75, 1.25, 1.0]], requires_grad=True)
    advantage_BT = torch.tensor([[-2.0, 2.0, 2.0]])
    loss_BT = BOUND[name](ratio_BT, torch.zeros(1, 3), advantage_BT, low=0.25, high=0.25).loss_BT  # pyrefly: ignore[unexpected-keyword]
    (grad_BT,) = torch.autograd.grad(loss_BT.sum(), ratio_BT)
    assert grad_BT.tolist() == [[1.0, -1.0, -2.0]]


def test_each_decision_has_its_own_bounds():
    # A 1 at ratio 2 under ceilings of 1.2 and 1.5, A -1 at ratio 0.5 over floors of 0.8 and 0.4
    ratio_BT = torch.tensor([[2.0, 2.0, 0.5, 0.5]])
    low_BT = torch.tensor([[0.2, 0.2, 0.2, 0.6]], dtype=torch.float64)
    high_BT = torch.tensor([[0.2, 0.5, 0.2, 0.2]], dtype=torch.float64)
    advantage_BT = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    surrogate = surrogates.clipped(ratio_BT, ratio_BT.log(), advantage_BT, low=low_BT, high=high_BT)  # pyrefly: ignore[bad-argument-type]
    torch.testing.assert_close(surrogate.loss_BT, torch.tensor([[-1.2, -1.5, 0.8, 0.5]]))
    assert surrogate.low_BT.tolist() == [[False, False, True, False]]
