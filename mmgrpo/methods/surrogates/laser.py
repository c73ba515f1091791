"""LaSeR (last-token self-rewarding), arXiv:2510.14943.

The log-probability of one token after the end of the answer is fitted to the reward, and is part of the advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum, total
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.maths.group_stats import grouped
from mmgrpo.maths.terms import GROUP, TERMS, Loss, term
from mmgrpo.system.lazy import torch
from mmgrpo.values import end_logprob

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=lambda token: (end_logprob(token),), start=lambda start: start)
def self_rewarded(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    token: int,
    share: float = 0.1,
    scale: float = 0.1,
    anchor: float = -23.0,
    least: float = 0.1,
    start: int = 0,
) -> Tensor:
    """Self-rewards, the log-probability of a token after the end of an answer, are a part of the advantage.

    A <- (1 - share) A + share (s - mean_G s) / std_G s, where the sample std_G s of the group is above ``least``, at
    the steps of the run from ``start`` on. s = clip(scale (logprob(token) - anchor), 0, 1), 0 of a text that was cut
    off.

    Units: share is dimensionless, scale reward per nat, anchor nats, least a reward; steps count from 0.
    Source: LaSeR, arXiv:2510.14943, and its code (RUCBM/LaSeR, ``ray_trainer.py``, self_rewarding_advantages).
    """
    if feedback.step < start:
        return advantage_BT
    end_BT = feedback[end_logprob(token)].double()
    score_B = (scale * (end_BT.sum(1) - anchor)).clamp(0, 1).where((end_BT != 0).any(1), 0.0)
    mixed_BT = advantage_BT.clone()
    for rows in members(feedback):
        std = score_B[rows].std() if len(rows) > 1 else score_B.new_zeros(())
        if std > least:
            self_advantage_G1 = ((score_B[rows] - score_B[rows].mean()) / std)[:, None].to(advantage_BT)
            mixed_BT[rows] = ((1 - share) * advantage_BT[rows] + share * self_advantage_G1).where(
                feedback.mask_BT[rows], 0.0
            )
    return mixed_BT


@TERMS.register
@term(values=lambda token: (end_logprob(token),), couples=GROUP)
def self_reward(
    decisions: Decisions, *, token: int, scale: float = 0.1, anchor: float = -23.0, right: float = 1.0
) -> Loss:
    """Self-rewards, the log-probability of a token after the end of an answer, fitted to the reward.

    L = mean over the update's samples of w (scale (logprob(token) - anchor) - r)^2, of texts that were not cut off.
    w = n / (2 n_c): n such texts in the group, n_c of them right like this one, or wrong like it. A text without a
    reward has no error.

    Units: scale is reward per nat, anchor nats, right the reward from which a text counts as right.
    Source: LaSeR, arXiv:2510.14943, and its code (RUCBM/LaSeR, ``dp_actor.py``, internal_reward_loss). Deviation: w is
        of a group, there of a batch, so that no batch size matters.
    """
    if decisions.group_BT is None or decisions.reward_BT is None:
        raise ConfigError("self_reward needs group_BT and reward_BT: the groups and the rewards of the samples")
    groups, keep_BT = grouped(decisions.group_BT[:, 0]), decisions.mask_BT
    end_BT, reward_B = decisions[end_logprob(token)], decisions.reward_BT[:, 0]
    ended_BT = keep_BT & (end_BT.detach() != 0) & ~reward_B.isnan()[:, None]
    score_B = scale * (end_BT.where(ended_BT, 0.0).sum(1) - anchor)
    ended_PG, right_PG = groups.valid(ended_BT.any(1)), groups.matrix((reward_B >= right).float()) > 0
    weight_PG = _balanced(ended_PG, right_PG)
    error_PG = groups.matrix(score_B - reward_B).where(ended_PG, 0.0)
    members_P = groups.valid(keep_BT.any(1)).sum(1)
    value_P = (weight_PG * error_PG.square()).sum(1) / members_P.clamp(min=1)
    mean = value_P.sum() / decisions.num_groups
    value_sum = ValueSum(total(ended_PG), total(score_B.where(ended_BT.any(1), 0.0)))
    return Loss(mean, Diagnostics(loss_sums={"self_reward": total(mean)}, value_sums={"self_reward": value_sum}))


def _balanced(ended_PG: Tensor, right_PG: Tensor) -> Tensor:
    """n / (2 n_c) of those that are there, 0 of others, so that right and wrong ones weigh alike together."""
    count_P1 = ended_PG.sum(1, keepdim=True)
    right_P1 = (ended_PG & right_PG).sum(1, keepdim=True)
    same_PG = torch.where(right_PG, right_P1, count_P1 - right_P1).clamp(min=1)
    return (count_P1 / (2 * same_PG)).where(ended_PG, 0.0)
