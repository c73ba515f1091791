"""AVATAR, arXiv:2508.03100.

The first and last decisions of a sample get a larger weight than its middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def both_ends(feedback: Feedback, advantage_BT: Tensor, *, weight: float) -> Tensor:
    """The beginning and the end of a sample count more than its middle: a parabola over its kept decisions.

    A_t <- A_t (1 + weight (2 t / (L - 1) - 1)^2), t from 0 to L - 1; of a single decision 1 + weight.

    Units: weight is dimensionless, the excess of the ends over the middle.
    Source: temporal advantage shaping of AVATAR, arXiv:2508.03100.
    """
    position_BT = feedback.mask_BT.cumsum(1) - 1
    last_B1 = (feedback.length_B - 1).clamp(min=1)[:, None]
    from_middle_BT = (2 * position_BT / last_B1 - 1).to(advantage_BT)
    return advantage_BT * (1 + weight * from_middle_BT.square())
