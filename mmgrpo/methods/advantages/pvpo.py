"""PVPO (pre-estimated value), arXiv:2508.21104.

The baseline is a number of the data row: a value of the prompt that was estimated before the run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.feedback import Estimator, Feedback

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
def column_baseline(*, column: str) -> Estimator:
    """The reward less a number of the data row: what the prompt was worth before the run.

    A = r - column; the column holds, say, the mean reward of the reference's own samples. It replaces the advantage;
    groups of equal rewards teach too.

    Units: those of the reward.
    Source: PVPO, arXiv:2508.21104, eq. 11 and listing 1, its static value.
    """
    return Estimator(assign=partial(_column_baseline, column=column), columns=(column,))


def _column_baseline(feedback: Feedback, advantage_BT: Tensor, *, column: str) -> Tensor:
    gain_B = (feedback.reward_B - feedback.column(column)).where(feedback.valid_B, 0.0)
    return gain_B[:, None].to(advantage_BT).expand_as(advantage_BT)
