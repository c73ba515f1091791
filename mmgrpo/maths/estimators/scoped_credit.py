"""Credit by parts: estimators that give a reward's scores of spans, turns, steps or ranks to their decisions.

They add to the input advantage; for a reward that should act only by its parts set the weight to 0: it then trains
the samples with a scored part. Parts without a score, and decisions in no part, get nothing.

Axes: B samples, T decisions, S scopes of a sample, P groups, G size of the largest group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback, Scoped
from mmgrpo.maths.group_stats import Groups
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def scoped(feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0, eps: float = 1e-4) -> Tensor:
    """Each part against the same part of the group's other samples.

    A_t <- A_t + weight z(scope of t), z = (v - mean) / (std + eps) over the group's values of that scope number, sample
    std; 0 where fewer than two are known, or all are equal.

    Units: weight is advantage per standard deviation.
    Source: EviSRAG, arXiv:2510.09733, where each reward is standardized and given to its spans.
    """
    scores = feedback.scopes(reward)
    score_BS = standardized_BS(scores.value_BS.double(), scores.valid_BS, feedback.groups, eps)
    return with_parts(advantage_BT, scores, score_BS, weight)


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def process_returns(feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0) -> Tensor:
    """Step rewards summed from each step to the end, as they are.

    A_t <- A_t + weight sum_{j >= step of t} v_j: values 1, 0, 1 give 2, 1, 1.

    Units: weight is advantage per reward.   Source: REINFORCE with rewards to go, Williams 1992.
    """
    scores = feedback.scopes(reward)
    return_BS = to_end(scores.value_BS.double().where(scores.valid_BS, 0.0))
    return with_parts(advantage_BT, scores, return_BS, weight)


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def segment_differences(
    feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0, below: float = 1.0
) -> Tensor:
    """The change of the value over each segment; the value at the end of the sample is its reward.

    A_t <- A_t + weight (V(next segment's start) - V(this one's start)), only on decisions with an old probability
    below ``below``. The reward's parts are the segments, and its score of one is the value at its start; a segment
    without a value, or before one without, gets nothing.

    Units: weight is advantage per reward; below is a probability (0.9), 1 for all decisions.
    Source: SPO, arXiv:2505.23564, and its code (AIFrameResearch/SPO): V by rollouts from each cut point.
    """
    scoped = feedback.scopes(reward)
    S = scoped.value_BS.shape[1]
    number_BT = scoped.scope_BT.where(feedback.mask_BT, -1)
    last_B1 = number_BT.amax(1, keepdim=True)
    ends_BS = torch.arange(S) >= last_B1
    after_BS = torch.nn.functional.pad(scoped.value_BS[:, 1:], (0, 1)).double()
    valid_BS = torch.nn.functional.pad(scoped.valid_BS[:, 1:], (0, 1))
    after_BS = feedback.reward_B[:, None].where(ends_BS, after_BS)
    valid_BS = scoped.valid_BS & feedback.valid_B[:, None].where(ends_BS, valid_BS)
    change_BS = (after_BS - scoped.value_BS).where(valid_BS, 0.0)
    unlikely_BT = feedback.old_logprob_BT.exp() < below if below < 1 else torch.ones_like(feedback.mask_BT)
    return advantage_BT + weight * scoped.at_decisions(change_BS).where(unlikely_BT, 0.0).to(advantage_BT)


def with_parts(advantage_BT: Tensor, scores: Scoped, value_BS: Tensor, weight: float) -> Tensor:
    """The advantage, plus the weight times the scope's value on the decisions of each scope that has a score.

    Shapes: (B, T), (B, S) -> (B, T).
    """
    return advantage_BT + weight * scores.at_decisions(value_BS.where(scores.valid_BS, 0.0)).to(advantage_BT)


def standardized_BS(value_BS: Tensor, valid_BS: Tensor, groups: Groups, eps: float) -> Tensor:
    """Values standardized over the members of a group, separately for each scope number."""
    value_SPG, valid_SPG = by_group(value_BS, valid_BS, groups)
    S, P, G = value_SPG.shape
    if G < 2:
        return torch.zeros_like(value_BS)
    score_NG = group_advantage(value_SPG.reshape(S * P, G), valid_SPG.reshape(S * P, G), eps=eps)
    return groups.rows(score_NG.reshape(S, P, G)).T


def standardized_among_BS(scores: Scoped, groups: Groups, eps: float) -> Tensor:
    """Values standardized over all scopes of all members of a group."""
    value_SPG, valid_SPG = by_group(scores.value_BS.double(), scores.valid_BS, groups)
    S, P, G = value_SPG.shape
    if S * G < 2:
        return torch.zeros_like(scores.value_BS, dtype=torch.float64)
    value_PN, valid_PN = (each.transpose(0, 1).reshape(P, S * G) for each in (value_SPG, valid_SPG))
    score_PN = group_advantage(value_PN, valid_PN, eps=eps)
    return groups.rows(score_PN.reshape(P, S, G).transpose(0, 1)).T


def by_group(value_BS: Tensor, valid_BS: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Values and masks of scopes as matrices of groups: (B, S), bool (B, S) -> (S, P, G), bool (S, P, G)."""
    return groups.matrix(value_BS.T), groups.valid(valid_BS.T)


def to_end(value_BS: Tensor) -> Tensor:
    """The sum from each scope to the last."""
    return value_BS.flip(1).cumsum(1).flip(1)
