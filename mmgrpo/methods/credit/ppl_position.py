"""Position-based advantage shaping, arXiv:2508.02260.

Later decisions of a sample get a larger weight, by at most half of its advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(start=lambda start: start)
def late_decisions(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    strength: float = 0.1,
    steepness: float = 15.0,
    start: int = 0,
    end: int | None = None,
) -> Tensor:
    """The later half of a sample counts more, by at most half of its advantage.

    A_t <- A_t + sign(A_t) min(strength sigmoid(steepness (t / n - 0.5)), |A_t| / 2), t from 0 over the sample's n kept
    decisions, at the steps of the run from ``start`` to before ``end``.

    Units: strength is an advantage (0.1); steepness is dimensionless; steps count from 0.
    Source: Deng et al., arXiv:2508.02260, position-based advantage shaping, and its code
        (RUCAIBox/Slow_Thinking_with_LLMs, entropy2performance, ``core_algos.py``, compute_policy_loss).
    """
    if feedback.step < start or (end is not None and feedback.step >= end):
        return advantage_BT
    position_BT = (feedback.mask_BT.cumsum(1) - 1) / feedback.length_B.clamp(min=1)[:, None]
    bonus_BT = (strength * torch.sigmoid(steepness * (position_BT - 0.5))).to(advantage_BT)
    return advantage_BT + advantage_BT.sign() * bonus_BT.minimum(advantage_BT.abs() / 2)
