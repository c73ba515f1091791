"""T-PPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.errors import ConfigError
from mmgrpo.maths.critics import CriticRows
from mmgrpo.methods.strategies.t_ppo import extended_gae
from mmgrpo.values import VALUE
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of
from tests.maths.feedback_rows import feedback_of

VALUES = torch.tensor([[0.5, 0.6, 0.9], [0.2, 0.4, 0.7], [0.3, 0.5, 0.0], [0.1, 0.1, 0.1]], dtype=torch.float64)


def advantages(*, gamma: float, decay: float) -> Tensor:
    """A complete row; one that continues; one that continues after two tokens of this step; one without a reward."""
    feedback = feedback_of(
        [1.0, 0.0, 0.0, 0.0],
        [0, 1, 2, 3],
        mask=[[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]],
        values={VALUE: VALUES},
        valid=[True, False, False, False],
        partial=[False, True, True, False],
    )
    return extended_gae(gamma=gamma, decay=decay).assign(feedback, torch.zeros(4, 3, dtype=torch.float64))


def test_a_partial_row_has_no_surprise_at_its_cut() -> None:
    # complete: deltas 0.1, 0.3, 0.1; A = 0.1, 0.3 + 0.05, 0.1 + 0.175
    # partial: deltas 0.2, 0.3, 0; A = 0, 0.3, 0.2 + 0.15; of two tokens: 0, 0.2
    expected = [[0.275, 0.35, 0.1], [0.35, 0.3, 0.0], [0.2, 0.0, 0.0], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(advantages(gamma=1.0, decay=0.5), torch.tensor(expected, dtype=torch.float64))


def test_a_discount_shrinks_the_value_at_the_cut() -> None:
    # partial, gamma 0.5: deltas 0.5 0.4 - 0.2 = 0, 0.35 - 0.4 = -0.05, (0.5 - 1) 0.7 = -0.35; decay 1: factor 0.5
    row = [-0.1125, -0.225, -0.35]
    torch.testing.assert_close(advantages(gamma=0.5, decay=1.0)[1], torch.tensor(row, dtype=torch.float64))


def test_complete_rows_have_the_advantages_of_the_method() -> None:
    # decay 0.95: the last deltas are 0.4 and -0.4, those before 0.1 + 0.38 and -0.1 - 0.38
    step = Step(reward=(1.0, 0.0), groups=(0, 1), values={VALUE: [[0.5, 0.6], [0.5, 0.4]]})
    assert_credit("t-ppo", step, [[0.48, 0.4], [-0.48, -0.4]])
    assert bool(advantages_of(config_of("t-ppo"), step).mask_BT.all())


def test_the_critic_expects_the_reward_in_every_state_of_a_row() -> None:
    loss = Algorithm.of(config_of("t-ppo")).advantages.critic_loss
    assert loss is not None
    old_BT, mask_BT = torch.tensor([[0.5, 0.2, 0.9]]), torch.ones(1, 3, dtype=torch.bool)
    rows = CriticRows(
        old_BT=old_BT, reward_B=torch.tensor([1.0]), mask_BT=mask_BT, segment_BT=torch.zeros(1, 3, dtype=torch.long)
    )
    # (V - 1)^2 / 2, wherever the values were at the rollout
    torch.testing.assert_close(
        loss.of(torch.tensor([[0.0, 0.5, 2.0]]), rows), torch.tensor([[0.5, 0.125, 0.5]]), rtol=0, atol=1e-6
    )
    assert bool(loss.terms(rows).all())


def test_numbers_out_of_range_are_errors() -> None:
    with pytest.raises(ConfigError, match="gamma in"):
        extended_gae(gamma=0.0)
