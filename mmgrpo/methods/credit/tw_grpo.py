"""TW-GRPO (token-level weighted GRPO), arXiv:2505.24718.

Positions at which the distributions of the group's samples diverge get a larger weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.system.lazy import torch
from mmgrpo.values import PEERS

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(PEERS,))
def divergent_places(feedback: Feedback, advantage_BT: Tensor, *, most: float = 1.5, eps: float = 1e-8) -> Tensor:
    """Places at which the distributions of the group's members are far apart count more.

    A_t <- A_t (1 + (most - 1) (D_t - min D) / (max D - min D + eps)), least and most over the places of the group, D as
    ``PEERS``.

    Units: most is a factor (1.5); eps is nats.
    Source: TW-GRPO, arXiv:2505.24718, and its code (TW-GRPO, ``compute_token_importance_kl_logs_uniform``).
    """
    factor_BT = torch.ones_like(advantage_BT)
    for rows in members(feedback):
        divergence_GT, keep_GT = feedback[PEERS][rows].to(advantage_BT), feedback.mask_BT[rows]
        present_N = divergence_GT[keep_GT]
        if len(present_N):
            share_GT = (divergence_GT - present_N.min()) / (present_N.max() - present_N.min() + eps)
            factor_BT[rows] = (1 + (most - 1) * share_GT).where(keep_GT, 1.0)
    return advantage_BT * factor_BT
