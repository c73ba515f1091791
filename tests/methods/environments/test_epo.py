"""EPO: numbers of the authors' code, compute_discounted_scores and max_abs_normalize, and a loss by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.methods.environments.epo import relative_returns
from tests.configs.method_steps import Step, assert_credit, config_of
from tests.maths.decision_rows import decisions_at


def test_turns_have_their_returns_over_the_largest() -> None:
    """Returns 1.48005, 1.495, 0.5 and -0.754975, 0.2475, 0.25; and none."""
    rows = Step(
        reward=(1.5, -0.75, 0.0),
        turns=((0.0, 1.0, 0.5), (-1.0, 0.0, 0.25), (0.0, 0.0, float("nan"))),
        keys=[[]] * 3,
        lengths=(3, 3, 3),
    )
    assert_credit("epo", rows, [[0.99, 1.0, 0.334448], [-1.0, 0.327825, 0.331137], [0.0, 0.0, 0.0]])


def test_loss_is_a_mean_over_turns_of_means_over_tokens() -> None:
    """Turns of one and two tokens with the weights 1 and 0.5: -(1 x -2 + 0.5 x (-1 - 3) / 2) / 2."""
    objective = objective_of(config_of("epo").objective)
    mask_BT = torch.tensor([[True, False, True, True]])
    decisions = decisions_at(
        torch.tensor([[-2.0, 9.0, -1.0, -3.0]], dtype=torch.float64),
        advantage_BT=torch.tensor([[1.0, 0.0, 0.5, 0.5]], dtype=torch.float64),
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, Totals(num_samples=1, num_decisions=3)).double(),
        segment_BT=torch.tensor([[0, 1, 1, 1]]),
    )
    assert float(objective(objective.modulated(decisions, {})).value) == pytest.approx(1.5)


def test_a_discount_is_within_0_and_1() -> None:
    relative_returns(discount=0.0)
    relative_returns(discount=1.0)
    with pytest.raises(ConfigError, match=r"discount must be in \[0, 1\], got 1.5"):
        relative_returns(discount=1.5)
