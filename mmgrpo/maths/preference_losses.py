"""Losses of groups in which better members' scores are set above worse ones'.

Axes: P groups, G size of the largest group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.group_losses import Members, group_term
from mmgrpo.maths.sequence_scores import score
from mmgrpo.maths.terms import Term
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def preference(
    *,
    beta: float = 0.1,
    pairs: str = "extremes",
    top: float | None = None,
    sharper: float = 1.0,
    score_by: str = "sum_log_ratio",
    against: str = "reference",
) -> Term:
    """Better members' scores above worse ones', pair by pair.

    L = -mean over pairs of log sigmoid(c (s_better - s_worse)), c = beta sharper where r_better >= top, else beta.
    The pairs are a group's best and worst member, the first of equals (``extremes``), or every two of different rewards
    (``all``); it is 0 in groups of equal rewards.

    Units: beta is logits per nat (0.1); top is in the reward's units, null: no reward is the top.
    Raises: ConfigError for other pairs.
    Source: DPO, arXiv:2305.18290, eq. 7, on pairs drawn by the policy itself (online DPO, arXiv:2402.04792); with all
        pairs, the mean log-ratio and a larger beta at the top, TRPA, arXiv:2504.04524, and its code
        (XueruiSu/Trust-Region-Preference-Approximation, ``compute_pairwise_policy_loss``), but for its fallback for
        batches without a pair.
    """
    if pairs not in ("extremes", "all"):
        raise ConfigError(f"pairs must be extremes or all, got {pairs!r}")
    loss_P = partial(_preference_P, beta=beta, pairs=pairs, top=top, sharper=sharper)
    return group_term("preference", loss_P, score(score_by, against=against))


def _preference_P(members: Members, *, beta: float, pairs: str, top: float | None, sharper: float) -> Tensor:
    reward_PG, present_PG = members.reward_PG, members.present_PG
    better_PGG = reward_PG[:, :, None] > reward_PG[:, None, :]
    better_PGG = better_PGG & present_PG[:, :, None] & present_PG[:, None, :]
    if pairs == "extremes":
        best_P = reward_PG.where(present_PG, -torch.inf).argmax(1)
        worst_P = reward_PG.where(present_PG, torch.inf).argmin(1)
        best_PG, worst_PG = (torch.nn.functional.one_hot(each_P, reward_PG.shape[1]) for each_P in (best_P, worst_P))
        better_PGG = better_PGG & (best_PG[:, :, None] & worst_PG[:, None, :]).bool()
    margin_PGG = beta * (members.score_PG[:, :, None] - members.score_PG[:, None, :])
    if top is not None:
        margin_PGG = margin_PGG * torch.where(reward_PG >= top, sharper, 1.0)[:, :, None].to(margin_PGG)
    loss_PGG = -torch.nn.functional.logsigmoid(margin_PGG).where(better_PGG, 0.0)
    return loss_PGG.sum((1, 2)) / better_PGG.sum((1, 2)).clamp(min=1)


PREFERENCES: Mapping[str, Callable[..., Term]] = MappingProxyType(
    {
        "preference": preference,
    }
)
"""These losses by the name that a method's configuration uses; called with their numbers."""
