"""CURE (first stage): numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.maths.strategies import Setting
from mmgrpo.maths.strategies.branch_points import Row
from tests.configs.method_steps import config_of
from tests.maths.round_rows import round_of


def test_answers_are_cut_at_one_of_the_20_most_uncertain_tokens() -> None:
    strategy = Algorithm.of(config_of("cure")).strategy
    assert strategy.places is not None
    entropy_T = torch.arange(40.0)  # before the last tokens, place 39 first
    places = strategy.places(Row(num_decisions=40, value_T=entropy_T))
    chosen = set()
    for seed in range(200):
        setting = Setting(step=0, num_prompts=1, group_size=1, seed=seed)
        first = replace(round_of(strategy.ask((), setting), [1]), places_B=[places])
        (further,) = strategy.ask([first], setting)
        assert further.continues is not None
        assert (further.members, further.continues.member) == ((1, 2, 3), 0)
        chosen.add(further.continues.after)
        assert strategy.ask([first, first], setting) == ()
    assert chosen == set(range(20, 40))
