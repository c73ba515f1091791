"""GRPO with process supervision, arXiv:2402.03300.

Step rewards are standardized over all steps of the group and summed from each step to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.scoped_credit import by_group, to_end, with_parts
from mmgrpo.maths.feedback import Feedback, Scoped
from mmgrpo.maths.group_stats import Groups
from mmgrpo.system.lazy import torch

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
    return with_parts(advantage_BT, scores, to_end(_standardized_BS(scores, feedback.groups, eps)), weight)


def _standardized_BS(scores: Scoped, groups: Groups, eps: float) -> Tensor:
    value_SPG, valid_SPG = by_group(scores.value_BS.double(), scores.valid_BS, groups)
    S, P, G = value_SPG.shape
    if S * G < 2:
        return torch.zeros_like(scores.value_BS, dtype=torch.float64)
    value_PN, valid_PN = (each.transpose(0, 1).reshape(P, S * G) for each in (value_SPG, valid_SPG))
    score_PN = group_advantage(value_PN, valid_PN, eps=eps)
    return groups.rows(score_PN.reshape(P, S, G).transpose(0, 1)).T
