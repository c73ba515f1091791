"""Numbers of hidden states, by hand, by closed forms and by automatic differentiation."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.internals import (
    attention_distance,
    attention_influence,
    effective_rank,
    gradient_curvature,
    gradient_square,
    rank_acceleration,
    rank_velocity,
)
from mmgrpo.values import GRADIENT_CURVATURE, GRADIENT_SQUARE, RANK_OF_STATES
from mmgrpo.values import attention_distance as distance_of
from mmgrpo.values import attention_influence as influence_of
from mmgrpo.values import rank_acceleration as acceleration_of
from mmgrpo.values import rank_velocity as velocity_of
from tests.maths.feedback_rows import feedback_of

AXES = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


@pytest.mark.parametrize("turned", [False, True])
def test_effective_rank(turned: bool) -> None:
    """Singular values 3 and 1 less the mean: shares 3/4 and 1/4, e^H = 4 / 3^(3/4); a line has 1, a point nothing."""
    states_TD = AXES * torch.tensor([3.0, 1.0]) + 5
    states_TD = torch.cat([states_TD, torch.full((4, 6), 7.0)], dim=1) if turned else states_TD
    assert effective_rank(states_TD).item() == pytest.approx(4 / 3**0.75, abs=1e-6)
    assert effective_rank(AXES).item() == pytest.approx(2.0)
    assert effective_rank(AXES[:2]).item() == pytest.approx(1.0)
    assert effective_rank(AXES[:1]).item() == 0.0
    assert effective_rank(torch.ones(3, 2)).item() == pytest.approx(1.0)


def test_rank_of_beginnings() -> None:
    """Two states are on a line, of rank 1; three of them have r_2, four 2: d_2 = r_2 - 1, d_3 = 2 - (1 + r_2) / 2.

    Less their mean the three have Gram matrix diag(2, 2/3), singular values of shares sqrt 3 : 1.
    """
    share = sqrt(3) / (sqrt(3) + 1)
    second = share**-share * (1 - share) ** (share - 1)
    steps = (second - 1, 2 - (1 + second) / 2)
    assert rank_velocity(AXES, 1).item() == pytest.approx(sum(steps) / 2, abs=1e-6)
    assert rank_acceleration(AXES, 1).item() == pytest.approx(steps[1] - steps[0], abs=1e-6)
    assert rank_velocity(AXES, 2).item() == rank_acceleration(AXES, 3).item() == 0.0  # one beginning, and none


def test_the_last_layer_by_automatic_differentiation() -> None:
    weight_VD = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    state_D, token = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), 2

    def probability(weight_VD: Tensor) -> Tensor:
        return (weight_VD @ state_D).softmax(-1)[token]

    gradient_VD = torch.autograd.grad(probability(weight_VD).log(), weight_VD)[0]
    hessian = torch.autograd.functional.hessian(probability, weight_VD).reshape(15, 15) / probability(weight_VD)
    of = (state_D[None], (weight_VD @ state_D)[None].detach(), torch.tensor([token]))
    assert gradient_square(*of).item() == pytest.approx(float(gradient_VD.square().sum()), rel=1e-6)
    along = gradient_VD.reshape(-1) @ hessian @ gradient_VD.reshape(-1)
    assert gradient_curvature(*of).item() == pytest.approx(float(along.detach()), rel=1e-6)


def test_the_last_layer_by_hand() -> None:
    """p = 3/4, 1/4, the second sampled, |h|^2 = 4: u = -3/4, 3/4, |u|^2 = 9/8; u'Fu = 9/16 - (3/8)^2 = 27/64."""
    of = (torch.tensor([[2.0, 0.0]]), torch.tensor([[log(3.0), 0.0]]), torch.tensor([1]))
    assert gradient_square(*of).item() == pytest.approx(4.5)
    assert gradient_curvature(*of).item() == pytest.approx(16 * (81 / 64 - 27 / 64))


def test_a_small_step_is_kept() -> None:
    """lr A = 0.5: the shift 0.5 a + 0.125 c, the divergence a^2 / 8; a = 1, 2, 1, 1 of c = 0, 0, 4, -4."""
    square_BT, curvature_BT = torch.tensor([[1.0, 2.0, 1.0, 1.0]]), torch.tensor([[0.0, 0.0, 4.0, -4.0]])
    values = {GRADIENT_SQUARE: square_BT, GRADIENT_CURVATURE: curvature_BT}
    feedback = feedback_of([1.0], [0], mask=[[1, 1, 1, 1]], values=values)
    advantage_BT = torch.ones(1, 4)
    both = FILTERS["within_curvature"](lr=0.5, shift=0.9, divergence=0.2).keep(feedback, advantage_BT)
    assert both.tolist() == [[True, False, False, True]]
    wide = FILTERS["within_curvature"](lr=0.5, shift=1.1, divergence=0.2).keep(feedback, advantage_BT)
    assert wide.tolist() == [[True, False, True, True]]
    with pytest.raises(ConfigError, match="above 0"):
        FILTERS["within_curvature"](lr=0.5, shift=0.0, divergence=0.2)


def test_a_bonus_for_more_directions() -> None:
    """Usual 10, 2 and -1: z = 1, 0, 0 and -1, 5 (of 8), 0; w = 1/2, and w = sigmoid(2) where z_a = 1.

    (tanh 1) / 2 = 0.3807971; (tanh -1 + tanh 5) / 2 = 0.1191575; sigmoid(2) tanh 1 = 0.6708214, over half of |A|.
    """
    values = {
        RANK_OF_STATES: torch.tensor([[20.0] * 2, [0.0] * 2, [20.0] * 2]),
        velocity_of(40): torch.tensor([[2.0] * 2, [18.0] * 2, [2.0] * 2]),
        acceleration_of(40): torch.tensor([[-1.0] * 2, [-1.0] * 2, [0.0] * 2]),
    }
    feedback = feedback_of([1.0] * 3, [0] * 3, mask=[[1, 1], [1, 0], [1, 1]], values=values)
    advantage_BT = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
    bonus = ESTIMATORS["rank_bonus"](rank=10.0, velocity=2.0, acceleration=-1.0)
    result = bonus.assign(feedback, advantage_BT).tolist()
    expected = [[1.0, 1.3807971], [-1.0 + 0.1191575, -1.0], [-1.0, -0.5]]
    assert [pytest.approx(row, abs=1e-6) for row in expected] == result
    begun = ESTIMATORS["rank_bonus"](rank=0.0, velocity=2.0, acceleration=-1.0)
    assert torch.equal(begun.assign(feedback, advantage_BT), advantage_BT)
    with pytest.raises(ConfigError, match="stride"):
        ESTIMATORS["rank_bonus"](rank=0.0, velocity=0.0, acceleration=0.0, stride=0)


WEIGHTS = torch.tensor([[[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.5, 0.0], [0.1, 0.2, 0.3, 0.4]]])
"""One head, three decisions after a prompt of one token."""


def test_how_far_decisions_look() -> None:
    # 0.5 * 1; 0.25 * 2 + 0.25 * 1; 0.1 * 3 + 0.2 * 2 + 0.3 * 1, of which the first is 0.1 * 2 in a window of 2
    assert attention_distance(WEIGHTS, 9).tolist() == [pytest.approx([0.5, 0.75, 1.0])]
    assert attention_distance(WEIGHTS, 2).tolist() == [pytest.approx([0.5, 0.75, 0.9])]


def test_how_decisions_are_looked_at() -> None:
    # the first by 0.25 and 0.2 from one and two places on; the second by 0.3; nothing follows the third
    assert attention_influence(WEIGHTS, 1, 2).tolist() == [pytest.approx([0.225, 0.3, 0.0])]
    assert attention_influence(WEIGHTS, 2, 9).tolist() == [pytest.approx([0.2, 0.0, 0.0])]


def test_anchors_and_their_preplans() -> None:
    """Influence 5, 1, 1, 6, 0: of five 0.4 are at least the 0.6 quantile, 2.6: the first and the fourth.

    Distances 4, 9, 2, 1, 3 change by 5, 7, 1, 2 and 0, of medians 3 and 2. The first has none before it; the fourth
    looks 1 back, and the largest of the two changes before it is the second's 7.
    """
    values = {
        distance_of(10): torch.tensor([[4.0, 9.0, 2.0, 1.0, 3.0, 7.0]] * 2),
        influence_of(10, 50): torch.tensor([[5.0, 1.0, 1.0, 6.0, 0.0, 9.0]] * 2),
    }
    feedback = feedback_of([1.0, 0.0], [0, 0], mask=[[1, 1, 1, 1, 1, 0]] * 2, values=values)
    advantage_BT = torch.tensor([[2.0] * 6, [-2.0] * 6])
    result = ESTIMATORS["anchors"](reach=2, back=0.25).assign(feedback, advantage_BT)
    assert result[0].tolist() == pytest.approx([3.0, 2.25, 2.0, 2.75, 2.0, 2.0])
    assert torch.equal(result[1], advantage_BT[1])
    with pytest.raises(ConfigError, match="share"):
        ESTIMATORS["anchors"](share=1.0)
