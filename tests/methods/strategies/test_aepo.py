"""AEPO (arbitrary entropy policy optimization): numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mmgrpo.algorithm import schedules_of, strategy_of
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.strategies.aepo import with_tempered
from tests.configs.method_rows import A_TWO_6
from tests.configs.method_steps import Step, assert_credit, config_of
from tests.maths.round_rows import round_of

# a right row of a higher temperature has advantage 1 and is in no mean
CREDIT = (Step(reward=(1, 0, 1), lengths=[1] * 3, sources=(0, 0, 2)), [[A_TWO_6], [-A_TWO_6], [1.0]])


def test_advantages_of_the_method() -> None:
    assert_credit("aepo", *CREDIT)


FOUR = Setting(step=0, num_prompts=4, group_size=2)


@pytest.mark.parametrize(
    ("temperature", "most", "rewards", "room", "placed"),
    [
        (1.2, 60, [1, 0], 1, [1, 0]),  # (1 - 1/2) / 0.71 > 0.05 for the right one alone
        (1.2, 60, [1, 1], 0, [0, 0]),  # no sample beats a group that is right
        (0.8, 60, [0, 1], 0, [0, 0]),  # half of one, rounded down, as the code's // 2
    ],
)
def test_positives_replace_the_first_rows(
    temperature: float, most: int, rewards: list[int], room: int, placed: list[int]
) -> None:
    """_select_by_advantage and the entropy_batch of AEPO's ray_trainer.py: positives first, then batch[sample_num:]."""
    strategy = with_tempered(temperature=temperature, most=most)
    first = round_of(strategy.ask((), FOUR), [0] * 8)
    (again,) = strategy.ask([first], FOUR)  # the first quarter of four prompts
    assert (again.prompt, again.members, again.settings) == (0, (2, 3), {"temperature": temperature})
    assert (again.train_without_template, again.as_on_policy) == (True, True)
    rounds = [first, round_of([again], rewards)]
    assert strategy.ask(rounds, FOUR) == ()
    masks = [keep_B.int().tolist() for keep_B in strategy.keep(rounds, FOUR)]
    assert masks == [[0] * room + [1] * (8 - room), placed]


def test_few_positives_and_all_prompts() -> None:
    strategy = with_tempered(share=1.0, most=2, temperature=1.2)
    first = round_of(strategy.ask((), FOUR), [0] * 8)
    second = round_of(strategy.ask([first], FOUR), [0, 1] * 4)
    assert [keep_B.int().tolist() for keep_B in strategy.keep([first, second], FOUR)] == [
        [0, 0, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 0, 0, 0, 0],
    ]
    # a prompt's rows are compared with its rows alone: in a group of right rows none is above the mean
    third = round_of(strategy.ask([first], FOUR), [1, 1, 0, 1, 0, None, 0, 0])
    assert strategy.keep([first, third], FOUR)[1].int().tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    cold = with_tempered(share=1.0, most=4, temperature=0.8)
    assert [int(keep_B.sum()) for keep_B in cold.keep([first, second], FOUR)] == [6, 2]
    with pytest.raises(ConfigError, match="with_tempered needs"):
        with_tempered(share=0.0)


def test_the_temperature_follows_the_entropy() -> None:
    """AEPO's entropy_base of 0.5: 1.2 up to it, at the first step too, and 0.8 above."""
    config, memory = config_of("aepo"), Memory()
    schedules, values = schedules_of(config), []
    for logprob in (-0.6, -0.5, -0.4):
        memory = schedules.updated(memory, {"rollout/logprob_mean": logprob})
        values.append(schedules.at(1, memory).values["rollout.strategy.temperature"])
    assert values == [0.8, 1.2, 1.2]
    strategy = strategy_of(schedules.at(0, Memory()).config.rollout)
    requests = strategy.ask([round_of(strategy.ask((), FOUR), [0] * 8)], FOUR)
    assert requests[0].settings == {"temperature": 1.2}
    three = replace(FOUR, num_prompts=3)  # of which a quarter is less than one
    assert [request.prompt for request in strategy.ask([round_of(strategy.ask((), three), [0] * 6)], three)] == [0]


@pytest.mark.parametrize("numbers", [{"temperature": 0.0}, {"share": 0.0}, {"share": 1.5}, {"most": 0}])
def test_numbers_that_sample_nothing_raise(numbers: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="with_tempered needs"):
        with_tempered(**numbers)
