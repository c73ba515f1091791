"""UI-S1: numbers of the authors' code, compute_step_discounted_returns and step_norm_reward, on the same rows."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.maths.estimators.turn_credit import returns_until_wrong
from mmgrpo.maths.feedback import Scoped
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of

REWARDS = ((1.0, 1.0, 1.0), (1.0, 0.5, 1.0), (1.0, 1.0, 0.25))
RETURNS = [[1.75, 1.5, 1.0], [1.0, 0.5, 1.0], [1.5, 1.0, 0.25]]
STEPS = [[0.872869, 0.999998, 0.577349], [-1.091087, -0.999998, 0.577349], [0.218217, 0.0, -1.154698]]
EPISODES = [1.091087, -0.218217, -0.872869]
ROWS = Step(reward=(3.0, 2.5, 2.25), turns=REWARDS, keys=[[]] * 3, lengths=(3, 3, 3))


def test_advantages_of_the_method() -> None:
    expected = [[episode + step for step in row] for episode, row in zip(EPISODES, STEPS, strict=True)]
    assert_credit("ui-s1", ROWS, expected)


def test_advantages_without_the_deviation_are_differences_from_the_mean() -> None:
    estimator = {"name": "same_turns", "normalize": False}
    config = config_of("ui-s1", {"advantage.estimators": [estimator]})
    # of turn 0 the mean return is 4.25 / 3, of turn 1 it is 1, of turn 2 it is 0.75
    means = (4.25 / 3, 1.0, 0.75)
    expected = [
        [episode + value - mean for value, mean in zip(row, means, strict=True)]
        for episode, row in zip(EPISODES, RETURNS, strict=True)
    ]
    assert advantages_of(config, ROWS).advantage_BT.tolist() == [pytest.approx(row, abs=2e-6) for row in expected]


def test_return_ends_before_a_wrong_turn_and_before_one_without_a_reward() -> None:
    value_BS = torch.tensor([*REWARDS, (1.0, 9.0, 1.0)])
    valid_BS = torch.ones(4, 3, dtype=torch.bool)
    valid_BS[3, 1] = False
    turns = Scoped(scope_BT=torch.arange(3).expand(4, 3), value_BS=value_BS, valid_BS=valid_BS)
    return_BS = returns_until_wrong(turns, discount=0.5, right=1.0)
    assert return_BS[:3].tolist() == RETURNS
    assert return_BS[3].nan_to_num(-1.0).tolist() == [1.0, -1.0, 1.0]
    # without a bound every turn passes its return back: 1 + 0.5 (0.5 + 0.5) and 0.5 + 0.5
    assert returns_until_wrong(turns, discount=0.5, right=None)[1].tolist() == [1.5, 1.0, 1.0]
