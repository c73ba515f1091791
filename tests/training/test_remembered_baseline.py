"""A persistent baseline: rewards compared with the memory of their prompts, one sample per prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import value
from mmgrpo.maths.feedback import Feedback
from mmgrpo.memory import Memory, Outcomes
from mmgrpo.methods.memory.spo import remembered_baseline
from mmgrpo.training.prompt_stats import read_prompt_stats
from tests.maths.feedback_rows import feedback_of
from tests.test_trainer import BASE, lines, run, weights

SINGLE: dict[str, Any] = {
    "rollout": {**BASE["rollout"], "prompts_per_step": 8, "group_size": 1},
    "advantage": {"scale": "raw", "estimators": [{"name": "remembered_baseline"}]},
    "steps": 4,
}


def feedback(remembered_N: list[float], valid: list[bool]) -> Feedback:
    rows = feedback_of([1.0, 0.0, 1.0, 7.0], [0, 1, 2, 3], mask=[[1, 1]] * 4, valid=valid)
    return replace(rows, memory_columns={"value": torch.tensor(remembered_N, dtype=torch.float64)})


def test_numbers() -> None:
    outcomes = feedback([0.5, 0.5, 0.0, 0.0], [True, True, True, False])
    plain_BT = remembered_baseline(normalize=False).assign(outcomes, torch.zeros(4, 2))
    assert plain_BT[:, 0].tolist() == [0.5, -0.5, 1.0, 0.0]
    # mean 1/3, deviations 1/6, -5/6, 2/3: variance (1 + 25 + 16) / 36 / 2 = 7/12, std 0.7637626
    result_BT = remembered_baseline(eps=0.0).assign(outcomes, torch.zeros(4, 2))
    assert result_BT[:, 1].tolist() == pytest.approx([0.2182179, -1.0910895, 0.8728716, 0.0])


def test_the_number_is_that_of_the_rows_prompt() -> None:
    memory = Memory().declared(remembered_baseline().memory)
    memory = memory.write("value", ["b"], torch.tensor([0.25], dtype=torch.float64))
    result_N = read_prompt_stats(memory, torch.tensor([1, 0, 1]), "ab".__getitem__, "value")
    assert result_N.tolist() == [0.25, 0.5, 0.25]


def test_the_value_is_the_mean_of_spos_tracker() -> None:
    alpha, beta, value_K = 4.0, 4.0, torch.tensor([0.5], dtype=torch.float64)
    for step, reward in enumerate((1.0, 1.0, 0.0, 1.0, 0.0)):
        alpha, beta = 0.875 * alpha + reward, 0.875 * beta + 1 - reward
        reward_K = torch.tensor([reward], dtype=torch.float64)
        outcomes = Outcomes(
            keys=("a",),
            step=step,
            num_K=torch.tensor([1]),
            reward_sum_K=reward_K,
            reward_square_sum_K=reward_K.square(),
        )
        value_K = value(value_K, outcomes)
        assert value_K.item() == pytest.approx(alpha / (alpha + beta), abs=1e-12)


@pytest.mark.nightly
def test_one_sample_a_prompt_trains_and_resumes(tmp_path: Path) -> None:
    uninterrupted = run(tmp_path / "whole", checkpoint={"every": 2}, **SINGLE)
    assert all(row["optimizer/grad_norm"] > 0 for row in lines(uninterrupted))
    resumed = run(
        tmp_path / "whole",
        resume=uninterrupted.folder.path / "checkpoints" / "step-000002",
        checkpoint={"every": 2},
        **SINGLE,
    )
    assert torch.equal(weights(resumed), weights(uninterrupted))
    baselines = uninterrupted.session.memory.numbers["value"]
    assert bool((baselines != 0.5).all())
    assert torch.equal(resumed.session.memory.numbers["value"], baselines)


def test_a_group_of_one_needs_it() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        validated({"rollout": {"group_size": 1}})
