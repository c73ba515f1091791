"""ARPO: branch points and requests worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.maths.strategies import Branch, Request, Setting
from mmgrpo.maths.strategies.branch_points import Row
from tests.configs.method_rounds import strategy_of
from tests.maths.round_rows import round_of

SETTING = Setting(step=0, num_prompts=1, group_size=6)


def test_turns_with_a_higher_entropy_than_the_first_are_branch_points() -> None:
    """Means 0.5, 0.75 and 0.25 over turns at 0, 3 and 6: 0.5 + 0.2 x 0.25 is above 0.5, 0.5 - 0.2 x 0.25 is not."""
    places = strategy_of("arpo").places
    assert places is not None
    entropy_T = torch.tensor([0.4, 0.6, 9.0, 0.5, 1.0, 9.0, 0.25, 0.25])
    row = Row(num_decisions=8, turns=((0, 2), (3, 5), (6, 8)), value_T=entropy_T)
    assert places(row) == [3]


def test_first_20_tokens_of_a_turn_count() -> None:
    places = strategy_of("arpo").places
    assert places is not None
    entropy_T = torch.cat([torch.ones(2), torch.full((20,), 1.01), torch.full((100,), -9.0)])
    assert places(Row(num_decisions=122, turns=((0, 2), (2, 122)), value_T=entropy_T)) == [2]


def test_group_grows_by_branches_and_then_from_the_prompt() -> None:
    strategy = strategy_of("arpo")
    begins = strategy.ask((), SETTING)
    assert begins == (Request(prompt=0, members=(0, 1, 2)),)
    first = replace(round_of(begins, [1, 0, 0]), places_B=[(4,), (), (7,)])
    branches = strategy.ask([first], SETTING)
    assert branches == [
        Request(prompt=0, members=(3,), continues=Branch(0, 4)),
        Request(prompt=0, members=(4,), continues=Branch(2, 7)),
    ]
    without = replace(round_of(branches, [1, 1]), places_B=[(), ()])
    assert strategy.ask([first, without], SETTING) == (Request(prompt=0, members=(5,)),)
    further = replace(round_of(branches, [1, 1]), places_B=[(9, 12), (11,)])
    assert strategy.ask([first, further], SETTING) == [Request(prompt=0, members=(5,), continues=Branch(3, 9))]


def test_group_without_uncertain_turns_is_sampled_from_the_prompt() -> None:
    strategy = strategy_of("arpo")
    first = replace(round_of(strategy.ask((), SETTING), [1, 0, 0]), places_B=[(), (), ()])
    others = strategy.ask([first], SETTING)
    assert others == (Request(prompt=0, members=(3, 4, 5)),)
    second = replace(round_of(others, [1, 0, 0]), places_B=[(), (), ()])
    assert strategy.ask([first, second], SETTING) == ()
