"""ViSurf, arXiv:2510.10606.

The reward of a demonstration is lowered to the mean of the sampled members as soon as one of them reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.value_credit import is_sampled_B
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized
from mmgrpo.maths.sources import DEMONSTRATION
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def label_smoothing(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-4) -> Tensor:
    """Members standardized within their group, with a reduced reward of a demonstration that is not needed.

    A = (r - mean_G r) / (std_G r + eps), sample std, where the reward of a demonstration that a sampled member reaches
    is first set to the mean of the sampled ones. It replaces the advantage; 0 in groups of equal rewards.

    Units: any reward scale -> dimensionless; eps in the reward's units.
    Source: ViSurf, arXiv:2510.10606, its smoothing of the label's reward. Deviation: eps in the denominator.
    """
    source_B = torch.zeros_like(feedback.group_B) if feedback.source_B is None else feedback.source_B
    groups = feedback.groups
    reward_PG, valid_PG = groups.matrix(feedback.reward_B), groups.valid(feedback.valid_B)
    sampled_PG = groups.valid(is_sampled_B(feedback))
    count_P1 = sampled_PG.sum(1, keepdim=True)
    mean_P1 = reward_PG.where(sampled_PG, 0.0).sum(1, keepdim=True) / count_P1.clamp(min=1)
    highest_P1 = reward_PG.where(sampled_PG, -torch.inf).amax(1, keepdim=True)
    smoothed_PG = mean_P1.where(
        valid_PG & groups.matrix(source_B == DEMONSTRATION) & (highest_P1 >= reward_PG), reward_PG
    )
    advantage_B = groups.rows(standardized(smoothed_PG, valid_PG, eps=eps, correction=1))
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)
