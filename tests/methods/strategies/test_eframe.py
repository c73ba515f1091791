"""EFRame (without its replay): numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.algorithm import Algorithm
from tests.configs.method_rounds import TWO_OF_TWO, ExpectedRounds, assert_rounds
from tests.configs.method_steps import Step, advantages_of, config_of
from tests.maths.round_rows import round_of

# of the first prompt the 20 further members, and none of the first
ROUNDS = ExpectedRounds(
    rewards=([0, 0, 1, 0], [1, *[0] * 19]),
    requests=([(0, 2, 20, None)],),
    trained=([0, 0, 1, 1], [1] * 20),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("eframe", ROUNDS)


def test_of_further_members_the_rarer_kind_trains() -> None:
    """Of 20 with 5 right: (1 - 1/4) / 0.4442617 = 1.69 and -0.56; of 5 with one right all train, 1.79 and -0.45."""
    further, first = [1.0] * 5 + [0.0] * 15, [1.0] + [0.0] * 4
    result = advantages_of(
        config_of("eframe"), Step(reward=further + first, groups=[0] * 20 + [1] * 5, lengths=[1] * 25)
    )
    assert result.mask_BT[:, 0].tolist() == [True] * 5 + [False] * 15 + [True] * 5
    assert result.advantage_BT[[0, 5, 20, 21], 0].tolist() == pytest.approx(
        [1.6882, -0.5627, 1.7888, -0.4472], abs=1e-4
    )
    strategy = Algorithm.of(config_of("eframe")).strategy
    (more,) = strategy.ask([round_of(strategy.ask((), TWO_OF_TWO), [0, 0, 1, 0])], TWO_OF_TWO)
    assert (more.settings, more.train_without_template) == ({"temperature": 1.2}, False)
