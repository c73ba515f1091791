"""HBPO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.types import Prompt
from tests.configs.method_rounds import assert_prompt_templates
from tests.configs.method_steps import Step, assert_credit, config_of

# mean 0.75, deviation sqrt(9.5 / 7) = 1.164965; parts of mean 2, 1, 0 and 0, expected are 4 cos(3.1416 n / 8192)
CREDIT = (
    Step(reward=(3, 1, 2, 0, 0, 0, 0, 0), lengths=[1] * 8),
    [
        [2.25 / 1.164966 - 2 * 1.9231408],
        [0.25 / 1.164966 - 2 * 1.9231408],
        [1.25 / 1.164966 - 2 * 2.6955167],
        [-0.75 / 1.164966 - 2 * 2.6955167],
        *[[-0.75 / 1.164966 - 2 * 2.8284219]] * 2,
        *[[-0.75 / 1.164966 - 2 * 2.2222733]] * 2,
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("hbpo", *CREDIT)


def test_contexts_of_a_group() -> None:
    assert_prompt_templates("hbpo", ["shortest", "short", "long", "longest"])


def test_each_part_states_a_length() -> None:
    shown = [
        prompt_template(Prompt("why"), 0, History())
        for prompt_template in Algorithm.of(config_of("hbpo")).prompt_templates.values()
    ]
    stated = [512, 1024, 2048, 2560]
    assert [one and one.prefix for one in shown] == [
        f"<think> I will answer the question with {number} tokens" for number in stated
    ]
