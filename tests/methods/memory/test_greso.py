"""GRESO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.algorithm import prompt_sampler
from mmgrpo.data.samplers import Pool
from mmgrpo.memory import Memory, Outcomes
from mmgrpo.methods.memory.greso import skip_settled
from mmgrpo.types import Prompt
from tests.configs.method_rounds import assert_refilled
from tests.configs.method_rows import A_TWO, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss, config_of

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.28) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("greso", *LOSS)


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("greso")


def test_settled_prompts_are_skipped() -> None:
    """A prompt that was all right at three visits in a row stays in with probability 0.125: of 4,000 about 500."""
    config = config_of("greso")
    assert config.prompts is not None
    assert config.prompts.sampler is not None
    sampler = prompt_sampler(config.prompts.sampler)
    keys = tuple(str(n) for n in range(8000))
    memory = Memory().declared(sampler.columns)
    memory = memory.write("right_streak", keys[:4000], torch.full((4000,), 3))
    indices = sampler.draw(memory, 0, Pool(keys, [Prompt(key) for key in keys]), 4500, 0)
    assert sum(index < 4000 for index in indices) == pytest.approx(500, abs=60)


def test_a_step_without_a_reward_changes_no_probability() -> None:
    sampler, zero_K = skip_settled(), torch.zeros(2, dtype=torch.float64)
    memory = Memory().declared(sampler.columns).with_state("skip_settled", {"easy": 0.25, "hard": 0.75})
    outcomes = Outcomes(keys=("0", "1"), num_K=zero_K.long(), reward_sum_K=zero_K, reward_square_sum_K=zero_K, step=0)
    assert sampler.learn is not None
    assert dict(sampler.learn(memory, outcomes).state("skip_settled")) == {"easy": 0.25, "hard": 0.75}


def test_a_rate_at_the_bound_counts_as_wrong() -> None:
    """All prompts are wrong, more than two thirds of the target: fewer wrong ones are kept, and more right ones."""
    sampler = skip_settled(wrong=0.25, start=0.5, pace=0.01)
    rate_K = torch.full((2,), 0.25, dtype=torch.float64)
    outcomes = Outcomes(
        keys=("0", "1"), num_K=torch.ones(2).long(), reward_sum_K=rate_K, reward_square_sum_K=rate_K, step=0
    )
    assert sampler.learn is not None
    state = dict(sampler.learn(Memory().declared(sampler.columns), outcomes).state("skip_settled"))
    assert state == pytest.approx({"easy": 0.51, "hard": 0.49})
