"""AgentFlow: numbers worked out by hand."""

from __future__ import annotations

from math import exp

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.maths.aggregates import Totals
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit, config_of
from tests.maths.decision_rows import decisions_at


def test_outcome_is_the_advantage_of_every_turn() -> None:
    rows = Step(reward=ONE_OF_TWO, turns=((0, 0), (0, 0)), keys=[[], []])
    assert_credit("agentflow", rows, [[A_TWO_6] * 2, [-A_TWO_6] * 2])


def test_loss_is_a_mean_over_samples_of_turns_of_tokens() -> None:
    """Advantages 1 and -1; turns of one and two tokens against a single turn of two. 0.3 is clipped at 1.3."""
    objective = objective_of(config_of("agentflow", {"objective.kl.beta": 0.0}).objective)
    mask_BT = torch.tensor([[True, False, True, True], [True, True, False, False]])
    decisions = decisions_at(
        torch.tensor([[0.1, 9.0, 0.3, 0.05], [0.2, 0.0, 9.0, 9.0]], dtype=torch.float64),
        old_logprob_BT=torch.zeros(2, 4, dtype=torch.float64),
        advantage_BT=torch.tensor([[1.0] * 4, [-1.0] * 4], dtype=torch.float64),
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, Totals(num_samples=2, num_decisions=5)).double(),
        segment_BT=torch.tensor([[0, 1, 1, 1], [0, 0, 0, 0]]),
    )
    value = float(objective(objective.modulated(decisions, {})).value)
    first = (exp(0.1) + (1.3 + exp(0.05)) / 2) / 2
    second = -(exp(0.2) + 1) / 2
    assert value == pytest.approx(-(first + second) / 2, abs=1e-7)
