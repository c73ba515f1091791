"""RL-ZVP: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.methods.credit.rl_zvp import zero_variance_entropy
from mmgrpo.values import ENTROPY
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# all right: 0.1 H; all wrong: -0.1 (1 - H)
CREDIT = (
    Step(reward=(1, 1, 0, 0), groups=(0, 0, 1, 1), entropy=[[0.2, 1.0, 0.5]] * 4),
    [[0.02, 0.1, 0.05], [0.02, 0.1, 0.05], [-0.08, 0.0, -0.05], [-0.08, 0.0, -0.05]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rl-zvp", *CREDIT)


def test_masked_decisions_of_equal_groups_have_no_advantage() -> None:
    entropy_BT = torch.tensor([[0.2, 1.0], [0.2, 1.0]])
    feedback = feedback_of([1.0, 1.0], [0, 0], mask=[[1, 0], [1, 1]], values={ENTROPY: entropy_BT})
    advantage_BT = zero_variance_entropy().assign(feedback, torch.zeros(2, 2))
    assert advantage_BT.flatten().tolist() == pytest.approx([0.02, 0.0, 0.02, 0.1])
