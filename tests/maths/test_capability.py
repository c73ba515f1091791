"""Group sizes by their value for a policy with a pass rate; values by hand, sizes by exhaustive search."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.strategies.coba_rl import beta_of, by_capability, explored, training_value


def test_the_curve_moves_with_the_share_of_wrong_samples():
    # above a half 1 + 9 f; up to it f is bent: 1 / (1 + e) = 0.268941
    result = [beta_of(failures, 11.0) for failures in (1.0, 0.6, 0.5, 0.4)]
    assert result == pytest.approx([10.0, 6.4, 5.5, 3.420473], abs=1e-6)


def test_values_by_hand():
    # 1 / B(6, 5) = 10! / (5! 4!) = 1260: of 0.5 2.4609375, times 1 - e^-(4 / 4 / 4)
    assert training_value(4, 0.5, tau=4.0, alpha=6.0, beta=5.0) == pytest.approx(0.544357, abs=1e-6)
    # Beta(10, 1) is 10 p^9, and p is held to 0.99
    assert training_value(100, 1.0, tau=0.99, alpha=10.0, beta=1.0) == pytest.approx(9.135172 * 0.632121, abs=1e-5)


def test_most_goes_where_one_more_gains_most():
    rates = {0: 0.5, 1: 0.0, 2: 1.0, 3: 0.2}
    # 24 of 32 are left, two of four prompts are explored: int(0.8 * 24) = 19; tau = 3 + 9 * 0.0225 / 0.1667
    tau = 3 + 9 * 0.0225 / 0.1667
    ways = [way for way in product(range(2, 22), repeat=2) if sum(way) == 23]
    worth = {
        way: sum(training_value(n, p, tau=tau, alpha=6.0, beta=5.0) for n, p in zip(way, (0.5, 0.2), strict=True))
        for way in ways
    }
    result = explored(rates, 32, least=2, most=30, alpha=6.0, beta=5.0)
    assert (result[0], result[3]) == max(worth, key=lambda way: worth[way])
    assert (result[1], result[2]) == (7, 2)  # the 5 that are left go to the prompt that is never solved
    # 9 more each are all that 11 allows; 6 are left
    assert explored(rates, 32, least=2, most=11, alpha=6.0, beta=5.0) == {0: 11, 1: 8, 2: 2, 3: 11}


def test_sizes_follow_the_last_visits():
    strategy = by_capability(least=1, most=8)
    memory = Memory().declared(strategy.memory)
    setting = Setting(step=0, num_prompts=3, group_size=4, memory=memory)
    assert [len(request.members) for request in strategy.ask((), setting)] == [4, 4, 4]
    keys = ["0", "1"]
    visited = memory.write("visits", keys, torch.tensor([1, 1])).write("last_rate", keys, torch.tensor([1.0, 0.0]))
    visited = visited.write("last_step", keys, torch.tensor([0, 0]))
    # of 12, 1 each; 9 are left, one prompt of three to explore: int((0.6 + 0.2 * 2 / 3) * 9) = 6, and 3 for rate 0
    setting = Setting(step=1, num_prompts=3, group_size=4, memory=visited)
    assert [len(request.members) for request in strategy.ask((), setting)] == [1, 4, 7]
    with pytest.raises(ConfigError, match="total > 2"):
        by_capability(total=2.0)
