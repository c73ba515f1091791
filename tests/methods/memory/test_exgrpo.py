"""ExGRPO: numbers worked out by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

from mmgrpo.data.samplers import Pool
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.methods.memory.exgrpo import by_successes
from mmgrpo.types import Prompt
from tests.configs.method_rounds import sampled_prompts, strategy_of
from tests.configs.method_steps import Step, assert_loss

# A = -1 / 3 twice, 2 / 3; a ratio of 1.5 is not held, and of the remembered one 0.4 / 0.5
LOSS = (
    Step(
        reward=(0, 0, 1),
        log_ratio=((log(1.5),), (0.0,), (log(0.4),)),
        entropy=((0.3,),) * 3,
        sources=(0, 0, 1),
    ),
    ((1.5 + 1) / 3 - 0.8 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
)


def test_loss_of_the_method() -> None:
    assert_loss("exgrpo", *LOSS)


def test_half_of_a_step_are_prompts_that_some_samples_solve() -> None:
    """Of 40 prompts ten are half solved; the others are solved by all, which are not sampled, or by none."""
    rates = {str(n): 0.5 if n < 10 else float(n % 2) for n in range(40)}
    indices = sampled_prompts("exgrpo", rates, 20)
    assert set(indices[:10]) == set(range(10))
    assert len(set(indices)) == 20
    assert all(rates[str(index)] < 1 for index in indices[10:])


def test_most_certain_right_row_is_replayed() -> None:
    rows = [
        ReplayRow(key="a", reward=right, advantage=0.0, step=0, old_logprob_T=torch.tensor(logprob))
        for right, logprob in ((1.0, [-0.4, -0.6]), (1.0, [-0.1, -0.3]), (0.0, [-0.1, -0.1]))
    ]
    memory = Memory().with_replay(rows, per_prompt=8, total=8)
    setting = Setting(step=1, num_prompts=1, group_size=7, memory=memory, key_of=lambda n: "a")
    *_, request = strategy_of("exgrpo").ask((), setting)
    assert (request.members, request.off_policy_rows) == ((7,), (rows[1],))


def test_numbers_of_successes_share_the_draws_by_a_normal_curve() -> None:
    """Nine prompts of 4 successes in 8 share the weight 1, one of 3 has e^-0.5 = 0.607: 0.607 / 1.607 of the draws."""
    sampler, keys = by_successes(), tuple(str(n) for n in range(10))
    memory = Memory().declared(sampler.columns)
    memory = memory.write("num_samples", keys, torch.full((10,), 8))
    memory = memory.write("last_rate", keys, torch.tensor([0.5] * 9 + [0.375], dtype=torch.float64))
    pool = Pool(keys, [Prompt(key) for key in keys])
    draws = [sampler.draw(memory, 0, pool, 1, seed)[0] for seed in range(600)]
    assert draws.count(9) / 600 == pytest.approx(0.3775, abs=0.06)


@pytest.mark.parametrize("numbers", [{"group": 0}, {"width": 0.0}])
def test_no_group_and_no_width_raise(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="by_successes needs group >= 1 and width > 0"):
        by_successes(**numbers)  # pyrefly: ignore[bad-argument-type]
