"""PVPO (pre-estimated value), arXiv:2508.21104.

The baseline is a number of the data row: a value of the prompt that was estimated before the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(columns=lambda column: (column,))
def column_baseline(feedback: Feedback, advantage_BT: Tensor, *, column: str) -> Tensor:
    """The reward less a number of the data row, the value of the prompt before the run.

    A = r - column; the column has, for example, the mean reward of the reference's samples. It replaces the advantage;
    groups of equal rewards train too.

    Units: those of the reward.
    Source: PVPO, arXiv:2508.21104, eq. 11 and listing 1, its static value.
    """
    gain_B = (feedback.reward_B - feedback.column(column)).where(feedback.valid_B, 0.0)
    return gain_B[:, None].to(advantage_BT).expand_as(advantage_BT)
