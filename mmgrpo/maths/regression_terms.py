"""Terms that fit what the policy says to a number: its log-ratios to advantages, its word on itself to the rewards.

Axes: B samples, T decisions, P groups, G size of the largest group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum, total
from mmgrpo.maths.groups import grouped
from mmgrpo.maths.ratios import segment_sum_BT
from mmgrpo.maths.terms import GROUP, ROW, Loss, Term, log_ratio
from mmgrpo.system.lazy import torch
from mmgrpo.values import end_logprob

if TYPE_CHECKING:
    from torch import Tensor


def advantage_regression(*, beta: float) -> Term:
    """The log-ratio of each segment, fitted to its advantage.

    L = sum over segments of v (sum_t log r_t - sum_t A_t / beta)^2 / 2, t over the segment's kept decisions, v the
    aggregate's weight of a decision; log r is the ratio to the policy that sampled.

    Units: beta is advantage per nat; nats squared.   Raises: ConfigError for a beta of 0 or less.
    Source: DAPO, arXiv:2412.18279: a quadratic loss of log-ratios and scaled advantages, a segment a step of reasoning.
    """
    if not beta > 0:
        raise ConfigError(f"beta, by which advantages are divided, must be above 0, got {beta}")

    def loss(decisions: Decisions) -> Loss:
        keep_BT, segment_BT = decisions.mask_BT, decisions.segment_BT
        apart_BT = log_ratio(decisions) - decisions.advantage_BT / beta
        count_BT = segment_sum_BT(torch.ones_like(apart_BT), keep_BT, segment_BT).clamp(min=1)
        square_BT = segment_sum_BT(apart_BT, keep_BT, segment_BT).square() / (2 * count_BT)
        value = (decisions.plain_weight_BT * square_BT.where(keep_BT, 0.0)).sum()
        sums = {"advantage_regression": value.detach().double()}
        return Loss(value, Diagnostics(loss_sums=sums, num_weighed=total(keep_BT)))

    return Term(name="advantage_regression", loss=loss, couples=ROW)


def self_reward(*, token: int, scale: float = 0.1, anchor: float = -23.0, right: float = 1.0) -> Term:
    """What the policy says of its own answer by a token behind its end, fitted to the reward.

    L = mean over the update's samples of w (scale (logprob(token) - anchor) - r)^2, of texts that came to their own
    end. w = n / (2 n_c): n such texts in the group, n_c of them right like this one, or wrong like it.

    Units: scale is reward per nat, anchor nats, right the reward from which a text counts as right.
    Source: LaSeR, arXiv:2510.14943, and its code (RUCBM/LaSeR, ``dp_actor.py``, internal_reward_loss). Deviation: w is
        of a group, there of a batch, so that no batch size matters.
    """
    value = end_logprob(token)

    def loss(decisions: Decisions) -> Loss:
        if decisions.group_BT is None or decisions.reward_BT is None:
            raise ConfigError("self_reward needs group_BT and reward_BT: the groups and the rewards of the samples")
        groups, keep_BT = grouped(decisions.group_BT[:, 0]), decisions.mask_BT
        ended_BT = keep_BT & (decisions[value].detach() != 0)
        reward_B = decisions.reward_BT[:, 0]
        said_B = scale * (decisions[value].where(ended_BT, 0.0).sum(1) - anchor)
        there_PG, right_PG = groups.valid(ended_BT.any(1)), groups.matrix((reward_B >= right).float()) > 0
        weight_PG = _balanced(there_PG, right_PG)
        error_PG = groups.matrix(said_B - reward_B).where(there_PG, 0.0)
        members_P = groups.valid(keep_BT.any(1)).sum(1)
        value_P = (weight_PG * error_PG.square()).sum(1) / members_P.clamp(min=1)
        mean = value_P.sum() / decisions.num_groups
        found = ValueSum(total(there_PG), total(said_B.where(ended_BT.any(1), 0.0)))
        return Loss(mean, Diagnostics(loss_sums={"self_reward": total(mean)}, value_sums={"self_reward": found}))

    return Term(name="self_reward", loss=loss, values=(value,), couples=GROUP)


def _balanced(there_PG: Tensor, right_PG: Tensor) -> Tensor:
    """n / (2 n_c) of those that are there, 0 of others, so that right and wrong ones weigh alike together."""
    count_P1 = there_PG.sum(1, keepdim=True)
    right_P1 = (there_PG & right_PG).sum(1, keepdim=True)
    same_PG = torch.where(right_PG, right_P1, count_P1 - right_P1).clamp(min=1)
    return (count_P1 / (2 * same_PG)).where(there_PG, 0.0)


REGRESSION_TERMS: Mapping[str, Callable[..., Term]] = MappingProxyType(
    {"advantage_regression": advantage_regression, "self_reward": self_reward}
)
"""Regressions by the name that a method's configuration uses; called with their numbers."""
