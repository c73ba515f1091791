"""GTPO (token rewards by entropy), arXiv:2508.04349.

Token rewards grow with the entropy in right samples, and are negative and grow in size with the confidence in wrong
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.value_credit import is_sampled_B, standardize
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(ENTROPY,))
def entropy_rewards(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    base: float = 1.0,
    share: float = 0.1,
    right: float = 0.5,
    eps: float = 1e-6,
) -> Tensor:
    """A reward of each decision: of right samples by its entropy, of wrong ones by how sure it was.

    A_it = base + share n_t H_it / sum_k H_kt where r_i > right, over the n_t right members of the group that have a
    decision t;   A_jt = -base - share m_t (1 / H_jt) / sum_k (1 / H_kt) of the m_t others. It replaces the advantage.

    Units: base, share and right are in the reward's units; eps is added to sums, and in nats to entropies that divide.
    Source: GTPO, arXiv:2508.04349, eq. 3 and 5.
    """
    groups, entropy_BT = feedback.groups, feedback[ENTROPY].double()
    present_BT = feedback.mask_BT & feedback.valid_B[:, None]
    right_BT = present_BT & (feedback.reward_B > right)[:, None]
    shaped_BT = torch.zeros_like(entropy_BT)
    for sign, worth_BT, of_BT in ((1, entropy_BT, right_BT), (-1, 1 / (entropy_BT + eps), present_BT & ~right_BT)):
        worth_TPG, of_TPG = groups.matrix(worth_BT.T), groups.valid(of_BT.T)
        worth_TPG = worth_TPG.where(of_TPG, 0.0)
        part_TPG = of_TPG.sum(-1, keepdim=True) * worth_TPG / (worth_TPG.sum(-1, keepdim=True) + eps)
        shaped_BT += sign * (base + share * groups.rows(part_TPG).T).where(of_BT, 0.0)
    return shaped_BT.to(advantage_BT)


@ESTIMATORS.register
@estimator()
def whitened_by_sign(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Positive and negative advantages standardized as by ``whitened``, separately.

    A <- (A - mean A) / sqrt(var A + eps) over the job's decisions of the same sign; 0 stays 0.

    Units: as ``whitened``.
    Source: GTPO, arXiv:2508.04349, eq. 6.
    """
    keep_BT = feedback.mask_BT & is_sampled_B(feedback)[:, None]
    positive_BT, negative_BT = (
        standardize(feedback, advantage_BT, keep_BT & of_sign_BT, eps)
        for of_sign_BT in (advantage_BT > 0, advantage_BT < 0)
    )
    return positive_BT + negative_BT
