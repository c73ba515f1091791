"""HBPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.methods.off_policy.hbpo import part_baseline_advantage
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
    templated = [
        prompt_template(Prompt("why"), 0, History())
        for prompt_template in Algorithm.of(config_of("hbpo")).prompt_templates.values()
    ]
    stated = [512, 1024, 2048, 2560]
    assert [prompt and prompt.prefix for prompt in templated] == [
        f"<think> I will answer the question with {number} tokens" for number in stated
    ]


def test_members_without_a_reward_are_in_no_mean() -> None:
    """Of 2, 1 and 1: mean 4 / 3, deviation 0.577350; the first part's only reward is 1 above its baseline."""
    reward_PG, valid_PG = torch.tensor([[2.0, 9.0, 1.0, 1.0]]), torch.tensor([[True, False, True, True]])
    advantage_PG = part_baseline_advantage(reward_PG, valid_PG, baselines=[1.0, 1.0])
    assert advantage_PG[0].tolist() == pytest.approx([1.154699 + 1.0, 0.0, -0.577349, -0.577349], abs=1e-5)
