"""Knapsack RL: numbers worked out by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.strategies.knapsack_rl import by_learning_value, learning_value, shared_out
from tests.configs.method_steps import config_of


def test_samples_go_to_the_prompts_of_the_highest_value() -> None:
    assert [learning_value(n, 0.1) for n in (4, 8, 16)] == pytest.approx([0.027848, 0.046132, 0.065991], abs=1e-6)
    assert [learning_value(n, 0.5) for n in (4, 8, 16)] == pytest.approx([0.109375, 0.124023, 0.124996], abs=1e-6)
    rates, total = {0: 0.1, 1: 0.5, 2: 0.3}, 15
    ways = [way for way in product(range(2, 12), repeat=3) if sum(way) == total]
    best = max(ways, key=lambda way: sum(learning_value(n, rates[p]) for p, n in enumerate(way)))
    result = shared_out(rates, total, least=2, most=11)
    assert tuple(result.values()) == best
    # 0.5 needs ln 0.1 / ln 0.5 = 3.3 samples: of 9 left 6 go to the prompt that no sample solves
    assert shared_out({0: 0.5, 1: 0.0, 2: 1.0}, 15, least=2, most=11) == {0: 5, 1: 8, 2: 2}


def test_prompts_that_every_sample_solves_get_the_rest_where_none_always_fails() -> None:
    """0.5 needs 3 of the 11 that are left; the other 8 go to the prompt of rate 1."""
    assert shared_out({0: 0.5, 1: 1.0}, 15, least=2, most=11) == {0: 5, 1: 10}
    # 0.1 needs more than the 2 that are left
    assert shared_out({0: 0.1, 1: 0.0}, 6, least=2, most=11) == {0: 4, 1: 2}


def test_group_sizes_follow_the_last_visit() -> None:
    strategy = Algorithm.of(config_of("knapsack-rl")).strategy
    memory = Memory().declared(strategy.memory)
    setting = Setting(step=0, num_prompts=3, group_size=4, memory=memory)
    assert [len(request.members) for request in strategy.ask((), setting)] == [4, 4, 4]
    visited = memory.write("visits", ["0", "1"], torch.tensor([1, 1]))
    visited = visited.write("last_rate", ["0", "1"], torch.tensor([0.5, 0.0]))
    setting = Setting(step=1, num_prompts=3, group_size=4, memory=visited)
    # of 8, 2 each; 3 of the 4 left are what 0.5 needs, one goes to the prompt of rate 0
    assert [len(request.members) for request in strategy.ask((), setting)] == [5, 3, 4]
    assert set(strategy.memory) <= set(COLUMNS.values())


@pytest.mark.parametrize("numbers", [{"least": 0}, {"least": 3, "most": 2}, {"confidence": 0.0}, {"confidence": 1.0}])
def test_sizes_and_confidences_out_of_range_raise(numbers: dict[str, Any]) -> None:
    by_learning_value(least=1, most=1)
    with pytest.raises(ConfigError, match="by_learning_value needs 1 <= least <= most"):
        by_learning_value(**numbers)
