"""Fission-GRPO: numbers and requests worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.maths.strategies import Branch, Request, Setting
from mmgrpo.maths.strategies.branch_points import Row
from mmgrpo.methods.environments.fission_grpo import after_errors
from tests.configs.method_rounds import strategy_of
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of
from tests.maths.round_rows import round_of

A_TWO, A_THREE = 0.707106, 0.577349
SAMPLED_BY = [[0] * 3, [1] * 3, [1, 2, 2], [1, 3, 3], [1, 4, 4]]
ROWS = Step(reward=(1, 0, 1, 0, 1), sampled_by=SAMPLED_BY)


def test_recoveries_are_compared_with_each_other() -> None:
    """Rewards 1 and 0 from the prompt, and 1, 0, 1 from the error of the second: mean 2 / 3, deviation 0.577350."""
    credit = [A_TWO, -A_TWO, A_THREE, -2 * A_THREE, A_THREE]
    assert_credit("fission-grpo", ROWS, [[value] * 3 for value in credit])


def test_failed_prefix_trains_in_the_failed_sample_alone() -> None:
    mask_BT = advantages_of(config_of("fission-grpo"), ROWS).mask_BT
    assert mask_BT.tolist() == [[True] * 3] * 2 + [[False, True, True]] * 3


def test_failed_rows_are_continued_from_their_first_error() -> None:
    strategy, setting = strategy_of("fission-grpo"), Setting(step=0, num_prompts=1, group_size=4)
    first = replace(round_of(strategy.ask((), setting), [0, 1, 0, 0]), places_B=[(5, 9), (4,), (), (7,)])
    recoveries = [
        Request(prompt=0, members=(4, 5, 6, 7), continues=Branch(0, 5)),
        Request(prompt=0, members=(8, 9, 10, 11), continues=Branch(3, 7)),
    ]
    assert strategy.ask([first], setting) == recoveries
    assert strategy.ask([first, round_of(recoveries, [1] * 8)], setting) == ()


def test_turns_after_errors_are_branch_points() -> None:
    """One character a token: the answers of the environment are at 2 to 10 and at 12 to 17."""
    text = "ab{error} cd{fine}ef"
    places = strategy_of("fission-grpo").places
    assert places is not None
    row = Row(num_decisions=20, turns=((0, 2), (10, 12), (18, 20)), text=text, ends_T=range(1, 21))
    assert places(row) == [10]


def test_the_answer_of_the_environment_ends_before_the_next_turn() -> None:
    """The answer is characters 2 to 8, in two tokens; the d of the next turn is none of it."""
    row = Row(num_decisions=6, turns=((0, 2), (4, 6)), text="aberror?cd", ends_T=[1, 2, 5, 8, 9, 10])
    assert (after_errors(pattern="error").find(row), after_errors(pattern="d").find(row)) == ([4], [])
