"""AAPO, arXiv:2505.14264.

The margin of the reward over a number of the data row, clipped to bounds, is added to the advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(columns=lambda column: (column,))
def column_margin(
    feedback: Feedback, advantage_BT: Tensor, *, column: str, low: float = 0.2, high: float = 0.28
) -> Tensor:
    """Adds the difference of the reward from a number of the data row, clipped to bounds, to the advantage.

    A <- A + clip(r - column, -low, high); the column has, for example, the reward of a sample of the reference.

    Units: low and high in the reward's units.
    Source: AAPO, arXiv:2505.14264, and its code (JianxXiong/AAPO, ``AAPOTrainer.py``).
    """
    margin_B = (feedback.reward_B - feedback.column(column)).clamp(-low, high).where(feedback.valid_B, 0.0)
    return advantage_BT + margin_B[:, None].to(advantage_BT)
