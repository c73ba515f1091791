"""COPO (consistency-aware), arXiv:2508.04138.

The advantage blends a comparison within the group with one between groups, by the entropy of the group's answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.group_rows import agreement
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def global_consistency(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    shares: str,
    steepness: float = 5.0,
    middle: float = 1.0,
    eps: float = 1e-6,
) -> Tensor:
    """Groups that agree are compared with the other groups of the step, those that disagree within themselves.

    A <- w A + (1 - w) g, w = sigmoid(steepness (H - middle)) where r is not 0, else 0.
    H is the entropy of the group's answers in bits, g = (m - mean_P m) / (std_P m + eps), m = mean_G r, sample std over
    the groups of all processes.

    Units: those of the advantage; middle in bits. shares is the label of a reward.
    Source: COPO, arXiv:2508.04138, and its code (hijih/copo-code, verl/trainer/ppo/core_algos.py, ``soft-with-zero``).
        Deviation: that code blends two clipped losses, which is the same where both advantages have one sign.
    """
    between_B = _between_groups(feedback, eps)
    weight_B = torch.zeros_like(feedback.reward_B)
    for rows, share_G in agreement(feedback, shares):
        weight_B[rows] = torch.sigmoid(steepness * (-share_G.log2().mean() - middle))
    weight_B = weight_B.where((feedback.reward_B != 0) & feedback.valid_B, 0.0)
    blended_BT = weight_B[:, None] * advantage_BT + ((1 - weight_B) * between_B)[:, None]
    return blended_BT.to(advantage_BT).where(feedback.valid_B[:, None], advantage_BT)


def _between_groups(feedback: Feedback, eps: float) -> Tensor:
    """The mean reward of each sample's group, standardized over the groups of the job; 0 where they do not differ."""
    job = feedback.job
    reward_N = job.reward_N.where(job.valid_N, 0.0)
    of_N = job.group_N.unique(return_inverse=True)[1]
    num_P = torch.zeros(int(of_N.max()) + 1, dtype=reward_N.dtype)
    count_P = num_P.index_add(0, of_N, job.valid_N.to(reward_N))
    mean_P = num_P.index_add(0, of_N, reward_N) / count_P.clamp(min=1)
    valid_P = mean_P[count_P > 0]
    if len(valid_P) < 2 or not bool((valid_P != valid_P[0]).any()):
        return torch.zeros_like(feedback.reward_B)
    score_P = (mean_P - valid_P.mean()) / (valid_P.std() + eps)
    return score_P[of_N][job.local_rows]
