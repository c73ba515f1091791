"""AT-GRPO: numbers and requests worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.maths.strategies import Branch, Request, Setting
from tests.configs.method_rounds import strategy_of
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of
from tests.maths.round_rows import round_of

A_TWO = 0.707106

# the second of two rows is the best and is continued before its second turn
ROWS = Step(
    reward=(0.0, 0.5, 1.0), sampled_by=[[0, 0], [1, 1], [1, 2]], turns=((0, 0),) * 3, keys=[[]] * 3, lengths=(2, 2, 2)
)


def test_turns_are_compared_with_those_from_their_state() -> None:
    """First turns of rewards 0 and 0.5, second turns after the second row's first of 0.5 and 1: +-0.25 / 0.353553."""
    advantage_BT = advantages_of(config_of("at-grpo"), ROWS).advantage_BT
    expected = [[-A_TWO, 0.0], [A_TWO, -A_TWO], [0.0, A_TWO]]
    assert_credit("at-grpo", ROWS, expected)
    assert advantage_BT.shape == (3, 2)


def test_rewards_of_turns_are_compared() -> None:
    """The first turns are worth 1 and 0; of the second ones, 0 and 1, each but the first row's is of one state."""
    rows = replace(ROWS, turns=((1.0, 0.5), (0.0, 0.0), (0.0, 1.0)))
    estimator = {"name": "turns_of_one_state", "turn_rewards": True}
    advantage_BT = advantages_of(config_of("at-grpo", {"advantage.estimators": [estimator]}), rows).advantage_BT
    expected = [[A_TWO, 0.0], [-A_TWO, -A_TWO], [0.0, A_TWO]]
    assert [[round(value, 5) for value in row] for row in advantage_BT.tolist()] == [
        [round(value, 5) for value in row] for row in expected
    ]


def test_shared_turns_train_once() -> None:
    assert advantages_of(config_of("at-grpo"), ROWS).mask_BT.tolist() == [[True, True], [True, True], [False, True]]


def test_best_candidate_of_each_turn_is_continued() -> None:
    """The best is member 1, then member 3, which has one turn more, then that again, which has none left."""
    strategy, setting = strategy_of("at-grpo"), Setting(step=0, num_prompts=1, group_size=3)
    first = replace(round_of(strategy.ask((), setting), [0.0, 0.5, 0.2]), places_B=[(4,), (5, 9), ()])
    second = [Request(prompt=0, members=(3, 4), continues=Branch(1, 5))]
    assert strategy.ask([first], setting) == second
    rounds = [first, replace(round_of(second, [1.0, 0.0]), places_B=[(8,), ()])]
    third = [Request(prompt=0, members=(5, 6), continues=Branch(3, 8))]
    assert strategy.ask(rounds, setting) == third
    assert strategy.ask([*rounds, replace(round_of(third, [0.0, 0.0]), places_B=[(), ()])], setting) == []


def test_best_candidate_may_stay_the_best() -> None:
    """Member 1 is better than its continuations, and is continued before its third turn."""
    strategy, setting = strategy_of("at-grpo"), Setting(step=0, num_prompts=1, group_size=3)
    first = replace(round_of(strategy.ask((), setting), [0.0, 0.5, 0.2]), places_B=[(4,), (5, 9), ()])
    second = replace(round_of(strategy.ask([first], setting), [0.1, 0.2]), places_B=[(8,), ()])
    assert strategy.ask([first, second], setting) == [Request(prompt=0, members=(5, 6), continues=Branch(1, 9))]
