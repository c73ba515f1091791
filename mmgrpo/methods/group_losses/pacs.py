"""PACS, arXiv:2509.02522.

A classifier, with the sample's score relative to its group as the logit, is fitted to the reward as a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, group_loss
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="sum_log_ratio", against="old")
def pacs(members: Members, *, beta: float = 1.0, right: float = 0.5, balanced: bool = False) -> Tensor:
    """Rewards as labels that a score relative to the group's others should tell.

    L = mean_i w_i BCE(sigmoid(psi_i), r_i > right), psi_i = beta n / (n - 1) (s_i - mean s).
    w_i = 1, or where ``balanced`` n / (2 n_c), n_c the members of its label, in groups that have both.

    Units: beta is logits per unit of the score (1); right is in the reward's units.
    Source: PACS, arXiv:2509.02522, and its code (ritzz-ai/PACS, ``pacs_core_algos.py``).
    """
    count_P1 = members.count_P[:, None]
    logit_PG = beta * members.centered(members.score_PG) * count_P1 / (count_P1 - 1).clamp(min=1)
    right_PG = members.reward_PG > right
    loss_PG = torch.nn.functional.binary_cross_entropy_with_logits(logit_PG, right_PG.to(logit_PG), reduction="none")
    if balanced:
        num_P1 = (right_PG & members.present_PG).sum(1, keepdim=True)
        num_same_PG = num_P1.where(right_PG, count_P1 - num_P1)
        both_P1 = (num_P1 > 0) & (num_P1 < count_P1)
        loss_PG = loss_PG * (count_P1 / (2 * num_same_PG.clamp(min=1))).where(both_P1, 1.0)
    return members.mean(loss_PG)[:, 0].where(members.count_P > 1, 0.0)
