"""Turn-level credit: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of

OUTCOME = (1.0, 0.0, 0.0)
CALL = (0.5, 0.5, 0.0)
ROWS = Step(reward=OUTCOME, named_rewards={"turn": CALL}, turns=((0, 0),) * 3, keys=[[]] * 3, lengths=(2, 2, 1))


def test_first_turn_has_the_advantage_of_its_call() -> None:
    """Deviations: of 1, 0, 0 0.577350; of 0.5, 0.5, 0 0.288675; of 1.5, 0.5, 0 0.763763, each with 1e-4 added."""
    outcome = [2 / 3 / 0.5774503, -1 / 3 / 0.5774503]
    call = 1 / 6 / 0.2887751
    both = -2 / 3 / 0.7638626
    assert_credit(
        "turn-level-credit", ROWS, [[outcome[0] + call, outcome[0]], [outcome[1] + call, outcome[1]], [both, both]]
    )


def test_reward_that_the_run_does_not_have_raises() -> None:
    rows = Step(reward=OUTCOME, turns=((0, 0),) * 3, keys=[[]] * 3)
    with pytest.raises(ConfigError, match="no reward 'turn'"):
        advantages_of(config_of("turn-level-credit"), rows)
