"""SEED-GRPO, arXiv:2505.12346.

Advantages are scaled down in groups with a high entropy of the answers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.group_rows import agreement
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def uncertain_groups(feedback: Feedback, advantage_BT: Tensor, *, shares: str, strength: float = 0.02) -> Tensor:
    """Groups with disagreeing answers count less.

    A <- A (1 - strength S / log G), S = -mean_k log p_k over the different answers k of the group, p_k the share of its
    G members that gives k.

    Units: those of the advantage; strength is dimensionless (0.02). shares is the label of a reward.
    Source: SEED-GRPO, arXiv:2505.12346, eqs. 5 and 6 with its linear f, which leaves a group of one answer as it is.
        Reading: the mass of an answer is its share of the group, where eq. 5 adds the likelihoods of its samples.
    """
    factor_B = torch.ones_like(feedback.reward_B)
    for rows, share_G in agreement(feedback, shares):
        if len(rows) > 1:
            # an answer of n members occurs n times here: 1 / n of it each, with n = share G
            entropy = -(share_G.log() / share_G).sum() / (1 / share_G).sum()
            factor_B[rows] = 1 - strength * entropy / math.log(len(rows))
    return advantage_BT * factor_B[:, None].to(advantage_BT)
