"""Columns of the prompt statistics: numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.maths.columns import COLUMNS
from mmgrpo.memory import Outcomes


def after(name: str, before: list[float]) -> list[float]:
    """A column after a step of two prompts: three samples of rewards 0, 1, 1, and one without a reward."""
    outcomes = Outcomes(
        keys=("a", "b"),
        num_K=torch.tensor([3, 0]),
        reward_sum_K=torch.tensor([2.0, 0.0], dtype=torch.float64),
        reward_square_sum_K=torch.tensor([2.0, 0.0], dtype=torch.float64),
        step=7,
    )
    rule = COLUMNS[name].rule
    assert rule is not None
    return rule(torch.tensor(before, dtype=torch.float64), outcomes).tolist()


def test_columns_after_a_step() -> None:
    assert after("visits", [1.0, 4.0]) == [2.0, 5.0]
    assert after("num_samples", [1.0, 4.0]) == [4.0, 4.0]
    assert after("reward_sum", [1.0, 4.0]) == [3.0, 4.0]
    assert after("last_rate", [0.5, 0.25]) == [2 / 3, 0.25]
    assert after("last_step", [1.0, 4.0]) == [7.0, 7.0]
