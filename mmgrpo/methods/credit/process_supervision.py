"""GRPO with process supervision, arXiv:2402.03300.

Step rewards are standardized over all steps of the group and summed from each step to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.scoped_credit import standardized_among_BS, to_end, with_parts
from mmgrpo.maths.feedback import Feedback

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def process_supervision(
    feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0, eps: float = 1e-4
) -> Tensor:
    """Step rewards standardized over all steps of the group, summed from each step to the end.

    A_t <- A_t + weight sum_{j >= step of t} z_j, z = (v - mean) / (std + eps).
    Mean and sample std are over every step of every sample of the group.

    Units: weight is advantage per standard deviation.
    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1.3.
    """
    scores = feedback.scopes(reward)
    return with_parts(advantage_BT, scores, to_end(standardized_among_BS(scores, feedback.groups, eps)), weight)
