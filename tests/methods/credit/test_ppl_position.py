"""Position-based advantage shaping: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.methods.credit.ppl_position import late_decisions
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# 0.1 sigmoid of -7.5, -3.75, 0 and 3.75
CREDIT = (
    Step(reward=ONE_OF_TWO, lengths=(4, 4), number=250),
    [
        [A_TWO_6 + 0.0000552779, A_TWO_6 + 0.0022977370, A_TWO_6 + 0.05, A_TWO_6 + 0.0977022630],
        [-A_TWO_6 - 0.0000552779, -A_TWO_6 - 0.0022977370, -A_TWO_6 - 0.05, -A_TWO_6 - 0.0977022630],
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("ppl-position", *CREDIT)


@pytest.mark.parametrize(("step", "bonus"), [(1, 0.0), (2, 0.05), (3, 0.05), (4, 0.0)])
def test_advantages_change_from_the_first_step_to_before_the_last(step: int, bonus: float) -> None:
    """The second of two decisions is at the half, of sigmoid 1 / 2."""
    feedback = feedback_of([1.0], [0], mask=[[1, 1]], step=step)
    advantage_BT = late_decisions(start=2, end=4).assign(feedback, torch.ones(1, 2))
    assert float(advantage_BT[0, 1]) == pytest.approx(1.0 + bonus)
