"""MobileRL: the values of samples by their turns, and how often failed prompts are sampled, by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.samplers import Pool
from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory
from mmgrpo.methods.environments.mobilerl import cool_failed, shortest_path
from mmgrpo.types import Prompt
from tests.configs.method_steps import Step, advantages_of, config_of


def step(rewards: Sequence[float], lengths: Sequence[int], groups: Sequence[int] | None = None) -> Step:
    """Samples of as many turns, of a decision each."""
    turns = ((math.nan,) * max(lengths),) * len(rewards)
    return Step(reward=rewards, lengths=lengths, groups=groups, turns=turns, keys=((),) * len(rewards))


def test_right_samples_with_more_turns_than_the_shortest_are_worth_less() -> None:
    """Right ones of 2 and 4 turns are worth 1 and 1 - 2 / (2 * 4); 1, 0.75 and 0 have the deviation 0.520416."""
    credit_B = advantages_of(config_of("mobilerl"), step((1.0, 1.0, 0.0), (2, 4, 3))).advantage_BT[:, 0]
    assert credit_B.tolist() == pytest.approx([0.800642, 0.320256, -1.120897], abs=5e-6)


def test_groups_have_their_own_shortest_sample_and_equal_ones_no_advantage() -> None:
    """Of the second group none is right, and its values stay as they are: -1 and 1 by 0.707107."""
    rows = step((1.0, 1.0, 0.0, 0.5), (3, 3, 1, 2), groups=(0, 0, 1, 1))
    credit_B = advantages_of(config_of("mobilerl"), rows).advantage_BT[:, 0]
    assert credit_B.tolist() == pytest.approx([0.0, 0.0, -0.707105, 0.707105], abs=5e-6)


def test_prompts_that_failed_are_sampled_less_and_then_no_more() -> None:
    """Weights 1, exp(-2) and 0: of 2,000 single draws about 238 are of the second prompt."""
    sampler, keys = cool_failed(), ("fine", "cooling", "removed")
    memory = Memory().declared(sampler.columns).write("wrong_streak", keys, torch.tensor([1, 2, 5]))
    pool = Pool(keys, [Prompt(key) for key in keys])
    counts = Counter(sampler.draw(memory, step, pool, 1, 0)[0] for step in range(2000))
    assert counts[1] == pytest.approx(2000 * math.exp(-2) / (1 + math.exp(-2)), abs=50)
    assert counts[2] == 0
    assert sorted(sampler.draw(memory, 0, pool, 3, 0)) == [0, 1, 2]


def test_successful_samples_are_replayed() -> None:
    strategy = Algorithm.of(config_of("mobilerl")).strategy
    assert strategy.replay is not None
    assert strategy.replay.per_prompt == 4


def test_numbers_out_of_range_raise() -> None:
    with pytest.raises(ConfigError, match="patience"):
        cool_failed(patience=0)
    with pytest.raises(ConfigError, match="alpha"):
        shortest_path(alpha=1.5)
