"""SEELE: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.data.prompt_templates import solution_prefix
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.strategies.seele import Curve, adaptive_hints, fitted
from mmgrpo.training.prompt_stats import PromptStats, update_prompt_stats
from mmgrpo.types import Prompt
from tests.configs.method_steps import config_of
from tests.maths.round_rows import round_of

TWO_OF_EIGHT = Setting(step=0, num_prompts=2, group_size=8)


def test_half_are_right_at_the_share_of_the_curve() -> None:
    """Of SEELE's figure 3: k = 19.03, mu = -0.64 and b = 0.45, whose f(p) = 1/2 has 1 + e^(-k (p + mu)) = 11."""
    curve = Curve(19.03, 0.64, 0.45)
    assert curve.share_for(0.5) == pytest.approx(0.64 - 2.302585 / 19.03)
    assert curve(curve.share_for(0.5)) == pytest.approx(0.5)
    assert (curve.share_for(0.4), Curve(1.0, 0.9, 0.0).share_for(0.9)) == (0.0, 1.0)  # easier, and harder, than asked


def test_the_curve_goes_through_the_rounds_so_far() -> None:
    curve = Curve(10.0, 0.4, 0.1)
    fitted_curve = fitted([(share, curve(share)) for share in (0.0, 0.3, 0.5, 1.0)])
    assert (fitted_curve.slope, fitted_curve.middle, fitted_curve.floor) == pytest.approx((10.0, 0.4, 0.1))
    # of one share the mean counts
    twice = fitted([(0.3, curve(0.3) - 0.1), (0.3, curve(0.3) + 0.1), *[(p, curve(p)) for p in (0.0, 0.5, 1.0)]])
    assert (twice.slope, twice.middle) == pytest.approx((10.0, 0.4))
    # with (0, 0) and (1, 1): half are right at the half where half were
    assert fitted([(0.5, 0.5)]).share_for(0.5) == pytest.approx(0.5, abs=1e-6)


def test_each_round_has_the_share_that_makes_half_of_it_right() -> None:
    strategy = Algorithm.of(config_of("seele")).strategy
    memory = Memory().declared([column_of("share")]).write("share", ["1"], torch.tensor([0.25], dtype=torch.float64))
    setting = replace(TWO_OF_EIGHT, memory=memory)
    rounds, shares = [], []
    for rewards in ([1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 0, 1]):
        requests = strategy.ask(rounds, setting)
        assert [request.members for request in requests] == [(2 * len(rounds), 2 * len(rounds) + 1)] * 2
        assert {request.prompt_template for request in requests} == {"begun"}
        shares.append([request.share for request in requests])
        rounds.append(round_of(requests, rewards))
    assert strategy.ask(rounds, setting) == ()
    assert shares[0] == [0.99, 0.25]  # never seen, and where it ended
    assert shares[1] == [fitted([(0.99, 1.0)]).share_for(0.5), fitted([(0.25, 0.5)]).share_for(0.5)]
    second = [(0.99, 1.0), (shares[1][0], 0.0)], [(0.25, 0.5), (shares[1][1], 0.5)]
    assert shares[2] == [fitted(points).share_for(0.5) for points in second]
    with pytest.raises(ConfigError, match="equal rounds"):
        strategy.ask((), replace(setting, group_size=6))
    adaptive_hints(prompt_template="begun", first=1.0)
    with pytest.raises(ConfigError, match="adaptive_hints needs"):
        adaptive_hints(prompt_template="begun", target=1.0)


def test_the_last_share_is_remembered() -> None:
    stats = PromptStats(keys=["a"], reward_B=torch.ones(1), valid_B=torch.ones(1).bool(), step=0, shares={"a": 0.5})
    memory = update_prompt_stats(Memory().declared([column_of("share")]), stats)
    assert memory.read("share", ["a", "b"]).tolist() == [0.5, -1.0]
    assert update_prompt_stats(Memory(), stats) == Memory()


def test_a_context_shows_as_much_as_the_strategy_states() -> None:
    prompt, show = Prompt("why", columns={"solution": "a b c d"}), solution_prefix()
    hinted = show(prompt, 0, History(share=0.5))
    assert hinted is not None
    assert hinted.prefix == "a b "
    with pytest.raises(ConfigError, match="needs a share"):
        show(prompt, 0, History())


def test_a_rate_at_the_floor_needs_no_share() -> None:
    assert Curve(slope=10.0, middle=0.5, floor=0.2).share_for(0.2) == 0.0


@pytest.mark.parametrize("numbers", [{"target": 0.0}, {"target": 1.0}, {"rounds": 0}, {"first": 1.5}])
def test_numbers_without_a_share_raise(numbers: dict[str, Any]) -> None:
    adaptive_hints(prompt_template="begun", first=1.0)
    with pytest.raises(ConfigError, match="adaptive_hints needs"):
        adaptive_hints(prompt_template="begun", **numbers)
