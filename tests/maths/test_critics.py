"""The targets of a critic, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.maths.critics import generalized_advantage, value_loss
from mmgrpo.maths.estimators.value_credit import whitened
from tests.maths.feedback_rows import feedback_of


def test_generalized_advantages_skip_masked_decisions() -> None:
    # values 0.5, 0.6, 0.7, reward 1, gamma 0.9, decay 0.5: deltas 0.04, 0.03, 0.3;
    # 0.3, 0.03 + 0.45 * 0.3 = 0.165, 0.04 + 0.45 * 0.165 = 0.11425
    value_BT = torch.tensor([[0.5, 0.6, 9.0, 0.7]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False, True]])
    result_BT = generalized_advantage(value_BT, torch.tensor([1.0]), mask_BT, gamma=0.9, decay=0.5)
    torch.testing.assert_close(result_BT, torch.tensor([[0.11425, 0.165, 0.0, 0.3]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "clip", "loss", "slope"),
    [
        (0.4, 0.5, 0.18, -0.6),  # within 0.5 of 0: (0.4 - 1)^2 / 2
        (0.8, 0.5, 0.125, 0.0),  # held at 0.5, which is worse: (0.5 - 1)^2 / 2, and nothing is gained
        (-0.8, 0.5, 1.62, -1.8),  # held at -0.5, which is better: its own (-0.8 - 1)^2 / 2
        (0.8, None, 0.02, -0.2),
    ],
)
def test_value_loss(value: float, clip: float | None, loss: float, slope: float) -> None:
    """At the rollout 0 was expected, and 1 is right."""
    value_BT = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    result_BT = value_loss(value_BT, torch.zeros_like(value_BT), torch.ones_like(value_BT), clip=clip)
    result_BT.sum().backward()
    assert value_BT.grad is not None
    assert (float(result_BT.detach()), float(value_BT.grad)) == pytest.approx((loss, slope))


def test_advantages_are_standardized_over_the_job() -> None:
    # kept 1, 2 here and 3, 6 elsewhere: mean 3, squares 4 + 1 + 0 + 9 over 3 = 14 / 3, whose root is 2.1602469
    elsewhere = iter([torch.tensor([2.0, 9.0]), torch.tensor(9.0)])
    feedback = feedback_of([1.0, 1.0], [0, 1], mask=[[1, 1, 0], [1, 0, 0]], valid=[True, False])
    job = replace(feedback, summed=lambda value: value + next(elsewhere))
    advantage_BT = torch.tensor([[1.0, 2.0, 7.0], [7.0, 7.0, 7.0]], dtype=torch.float64)
    result_BT = whitened().assign(job, advantage_BT)
    expected = torch.tensor([[-0.9258201, -0.4629100, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result_BT, expected, rtol=0, atol=1e-6)
    alone = feedback_of([1.0], [0], mask=[[0, 1, 0]])
    assert whitened().assign(alone, advantage_BT[:1]).tolist() == [[0.0, 0.0, 0.0]]
