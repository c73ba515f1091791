"""GRPO-CARE: numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Scoped
from mmgrpo.methods.credit.grpo_care import likely_answers
from mmgrpo.values import of_view
from tests.maths.feedback_rows import feedback_of


def test_advantages_have_the_dtype_of_their_input() -> None:
    # p is 0.5 and 0.25 over the marked decision: the first of two right ones alone earns the bonus of 0.5
    scoped = Scoped(
        scope_BT=torch.tensor([[-1, 0]] * 3), value_BS=torch.ones(3, 1), valid_BS=torch.ones(3, 1, dtype=torch.bool)
    )
    feedback = feedback_of(
        [1.0, 1.0, 0.0],
        [0, 0, 0],
        old_logprob=[[0.0, 0.0]] * 3,
        values={of_view("slow"): torch.tensor([[0.0, 0.5], [0.0, 0.25], [0.0, 0.5]]).log()},
        scoped={"answer": scoped},
        named_rewards={"accuracy": [1.0, 1.0, 0.0]},
    )
    estimator = likely_answers(view="slow", of="accuracy", part="answer", eps=0.0)
    # 1.5, 1 and 0: mean 5 / 6, sample deviation sqrt(7 / 12)
    expected_B = [(reward - 5 / 6) / math.sqrt(7 / 12) for reward in (1.5, 1.0, 0.0)]
    for dtype in (torch.float32, torch.float64):
        advantage_BT = estimator.assign(feedback, torch.zeros(3, 2, dtype=dtype))
        assert advantage_BT.dtype == dtype
        assert advantage_BT[:, 0].tolist() == pytest.approx(expected_B)


@pytest.mark.parametrize("numbers", [{"strength": -1.0}, {"margin": -1.0}, {"ceiling": 0.0}, {"ceiling": 1.5}])
def test_numbers_out_of_range_raise(numbers: dict[str, float]) -> None:
    likely_answers(view="slow", of="accuracy", part="answer", ceiling=1.0)
    with pytest.raises(ConfigError, match="likely_answers needs"):
        likely_answers(view="slow", of="accuracy", part="answer", **numbers)
