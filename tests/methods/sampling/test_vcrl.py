"""VCRL: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.maths.strategies import Request, Setting
from tests.configs.method_rounds import strategy_of
from tests.maths.round_rows import round_of


def test_the_least_variance_rises() -> None:
    """One of four right: 3/4 of the largest variance, enough at first; from step 20 on it takes two."""
    for step, requests in ((19, ()), (20, (Request(prompt=1, members=(0, 1, 2, 3)),))):
        setting = Setting(step=step, num_prompts=1, group_size=4)
        strategy = strategy_of("vcrl", step)
        assert strategy.ask([round_of(strategy.ask((), setting), [1, 0, 0, 0])], setting) == requests
