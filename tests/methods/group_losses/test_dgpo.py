"""DGPO (direct group preference optimization): numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.maths.terms.group_losses import group_weight
from mmgrpo.methods.group_losses.dgpo import dgpo
from mmgrpo.values import from_reference, of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss
from tests.maths.decision_rows import decisions_at

# A = 0.5 / 0.5001; errors 0.2 and 0.4, 0.001 and 0 below the reference's: w = sigmoid(-100 * 0.001 A / 2), that is
# 0.487505; w A (0.2 - 0.4) / 2; kl 0.02 * 0.5
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-0.2,), (-0.4,)),
        values={of_view("reference"): [[-0.201], [-0.4]], from_reference("velocity_mse"): [[0.5]] * 2},
    ),
    -0.487505 * 0.5 / 0.5001 * 0.1 + 0.01,
)


def test_loss_of_the_method() -> None:
    assert_loss("dgpo", *LOSS)


@pytest.mark.parametrize(("change", "count"), [(0.1, 1.0), (-0.1, 0.0)], ids=["with", "against"])
def test_decisions_are_clipped_if_they_moved_with_their_advantage(change: float, count: float) -> None:
    """Ratios e^0.1 at a gain and e^-0.1 at a loss have left 1 +- 0.05; the other way round no bound applies."""
    old_BT = torch.full((2, 1), -1.0)
    logprob_BT = old_BT + torch.tensor([[change], [-change]])
    decisions = decisions_at(
        logprob_BT,
        old_logprob_BT=old_BT,
        advantage_BT=torch.tensor([[0.5], [-0.5]]),
        weight_BT=torch.full((2, 1), 0.5),
        group_BT=torch.zeros(2, 1, dtype=torch.long),
        values={of_view("reference"): logprob_BT},
    )
    diagnostics = dgpo(clip=0.05).loss(decisions).diagnostics
    assert (float(diagnostics.clip_high_count), float(diagnostics.clip_low_count)) == (count, count)


def test_a_group_of_one_weighs_by_its_gain() -> None:
    unit_BT = torch.ones(1, 1)
    weight_BT = group_weight(2 * unit_BT, unit_BT.bool(), unit_BT.long(), beta=1.0)
    assert float(weight_BT) == pytest.approx(torch.tensor(2.0).sigmoid().item())
