"""Credit by how far the answers of a group agree.

A reward says of each sample which share of its group gives the same answer (``semantic_clusters``, or ``majority_vote``
with ``mode: share``), with a weight of 0 where it should say nothing else.

Axes: B samples, T decisions, G members of a group, N samples of all processes, P groups of all processes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.maths.filters import members
from mmgrpo.system.lazy import torch
from mmgrpo.values import PEERS

if TYPE_CHECKING:
    from torch import Tensor


def uncertain_groups(*, shares: str, strength: float = 0.02) -> Estimator:
    """Groups whose answers disagree count less.

    A <- A (1 - strength S / log G), S = -mean_k log p_k over the different answers k of the group, p_k the share of its
    G members that gives k.

    Units: those of the advantage; strength is dimensionless (0.02). shares is the label of a reward.
    Source: SEED-GRPO, arXiv:2505.12346, eqs. 5 and 6 with its linear f, which leaves a group of one answer as it is.
        Reading: the mass of an answer is its share of the group, where eq. 5 adds the likelihoods of its samples.
    """
    return Estimator(assign=partial(_uncertain, shares=shares, strength=strength))


def _uncertain(feedback: Feedback, advantage_BT: Tensor, *, shares: str, strength: float) -> Tensor:
    factor_B = torch.ones_like(feedback.reward_B)
    for rows, share_G in _agreeing(feedback, shares):
        if len(rows) > 1:
            # an answer that n members give stands n times here: 1 / n of it each, with n = share G
            entropy = -(share_G.log() / share_G).sum() / (1 / share_G).sum()
            factor_B[rows] = 1 - strength * entropy / math.log(len(rows))
    return advantage_BT * factor_B[:, None].to(advantage_BT)


def global_consistency(*, shares: str, steepness: float = 5.0, middle: float = 1.0, eps: float = 1e-6) -> Estimator:
    """Groups that agree are compared with the other groups of the step, those that disagree within themselves.

    A <- w A + (1 - w) g, w = sigmoid(steepness (H - middle)) where r is not 0, else 0.
    H is the entropy of the group's answers in bits, g = (m - mean_P m) / (std_P m + eps), m = mean_G r, sample std over
    the groups of the whole job.

    Units: those of the advantage; middle in bits. shares is the label of a reward.
    Source: COPO, arXiv:2508.04138, and its code (hijih/copo-code, verl/trainer/ppo/core_algos.py, ``soft-with-zero``).
        Deviation: that code blends two clipped losses, which is the same where both advantages have one sign.
    """
    return Estimator(assign=partial(_consistency, shares=shares, steepness=steepness, middle=middle, eps=eps))


def _consistency(
    feedback: Feedback, advantage_BT: Tensor, *, shares: str, steepness: float, middle: float, eps: float
) -> Tensor:
    between_B = _between_groups(feedback, eps)
    weight_B = torch.zeros_like(feedback.reward_B)
    for rows, share_G in _agreeing(feedback, shares):
        weight_B[rows] = torch.sigmoid(steepness * (-share_G.log2().mean() - middle))
    weight_B = weight_B.where((feedback.reward_B != 0) & feedback.valid_B, 0.0)
    blended_BT = weight_B[:, None] * advantage_BT + ((1 - weight_B) * between_B)[:, None]
    return blended_BT.to(advantage_BT).where(feedback.valid_B[:, None], advantage_BT)


def _between_groups(feedback: Feedback, eps: float) -> Tensor:
    """The mean reward of each sample's group, standardised over the groups of the job; 0 where they do not differ."""
    job = feedback.job
    reward_N = job.reward_N.where(job.valid_N, 0.0)
    of_N = job.group_N.unique(return_inverse=True)[1]
    num_P = torch.zeros(int(of_N.max()) + 1, dtype=reward_N.dtype)
    count_P = num_P.index_add(0, of_N, job.valid_N.to(reward_N))
    mean_P = num_P.index_add(0, of_N, reward_N) / count_P.clamp(min=1)
    judged_P = mean_P[count_P > 0]
    if len(judged_P) < 2 or not bool((judged_P != judged_P[0]).any()):
        return torch.zeros_like(feedback.reward_B)
    score_P = (mean_P - judged_P.mean()) / (judged_P.std() + eps)
    return score_P[of_N][job.mine]


def _agreeing(feedback: Feedback, shares: str) -> list[tuple[Tensor, Tensor]]:
    """The members of each group of which the reward says a share above 0, and their shares."""
    said = feedback.reward(shares)
    known_B = said.valid_B & (said.value_B > 0)
    of_members = (rows[known_B[rows]] for rows in members(feedback))
    return [(rows, said.value_B[rows]) for rows in of_members if len(rows)]


def divergent_places(*, most: float = 1.5, eps: float = 1e-8) -> Estimator:
    """Places at which the distributions of the group's members are far apart count more.

    A_t <- A_t (1 + (most - 1) (D_t - min D) / (max D - min D + eps)), least and most over the places of the group, D as
    ``PEERS``.

    Units: most is a factor (1.5); eps is nats.
    Source: TW-GRPO, arXiv:2505.24718, and its code (TW-GRPO, ``compute_token_importance_kl_logs_uniform``).
    """
    return Estimator(assign=partial(_divergent, most=most, eps=eps), values=(PEERS,))


def _divergent(feedback: Feedback, advantage_BT: Tensor, *, most: float, eps: float) -> Tensor:
    factor_BT = torch.ones_like(advantage_BT)
    for rows in members(feedback):
        divergence_GT, keep_GT = feedback[PEERS][rows].to(advantage_BT), feedback.mask_BT[rows]
        there_N = divergence_GT[keep_GT]
        if len(there_N):
            share_GT = (divergence_GT - there_N.min()) / (there_N.max() - there_N.min() + eps)
            factor_BT[rows] = (1 + (most - 1) * share_GT).where(keep_GT, 1.0)
    return advantage_BT * factor_BT
