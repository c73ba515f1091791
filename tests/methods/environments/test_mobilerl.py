"""MobileRL: numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.data.samplers import Pool
from mmgrpo.maths.columns import column_of
from mmgrpo.memory import Memory
from mmgrpo.methods.environments.mobilerl import fewer_failures
from mmgrpo.types import Prompt
from tests.configs.method_rounds import strategy_of
from tests.configs.method_steps import Step, assert_credit


def test_longer_successes_are_worth_less() -> None:
    """Successes in 1, 2 and 4 turns are worth 1, 1/2 and 1/4, a failure 0: mean 0.4375, deviation 0.426956."""
    rows = Step(reward=(1.0, 1.0, 0.0, 1.0), turns=((0.0,) * 4,) * 4, keys=[[]] * 4, lengths=(1, 2, 3, 4))
    credit = [1.317462, 0.146385, -1.024693, -0.439154]
    assert_credit("mobilerl", rows, [[value] * 4 for value in credit])


def test_group_without_a_success_keeps_its_rewards() -> None:
    rows = Step(reward=(0.5, 0.0), turns=((0.0,) * 2,) * 2, keys=[[]] * 2, lengths=(2, 1))
    assert_credit("mobilerl", rows, [[0.25 / 0.353554] * 2, [-0.25 / 0.353554] * 2])


def test_prompts_that_keep_failing_are_sampled_less() -> None:
    """After 0, 1, 2 and 3 failures in a row the weights are 1, 1, exp(-1) and exp(-2)."""
    sampler, keys = fewer_failures(), ("a", "b", "c", "d")
    column = column_of("wrong_streak", {"wrong": 0.0})
    memory = Memory().declared((column,)).write("wrong_streak", keys, torch.tensor([0, 1, 2, 3]))
    pool, num = Pool(keys, [Prompt(key) for key in keys]), 4000
    drawn = [sampler.draw(memory, step, pool, 1, 7)[0] for step in range(num)]
    total = 2 + math.exp(-1) + math.exp(-2)
    for index, weight in enumerate((1, 1, math.exp(-1), math.exp(-2))):
        assert drawn.count(index) / num == pytest.approx(weight / total, abs=0.03)


def test_earlier_successes_join_the_groups() -> None:
    replay = strategy_of("mobilerl").replay
    assert replay is not None
    assert (replay.per_prompt, replay.total) == (8, 4096)
