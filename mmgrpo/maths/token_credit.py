"""Credit by which tokens the members of a group have in common: estimators that read the tokens.

Tokens of different members are compared position by position, over kept decisions alone.

Axes: B samples, T decisions, G members of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


def prefix_tree(*, weight: float = 1.0, normalise: bool = True, eps: float = 1e-4) -> Estimator:
    """What a token changed in the mean reward of the members that came so far: credit where the group branches.

    A_t <- A_t + weight * (V(prefix with t) - V(prefix)) / (std_G r + eps), V = mean reward of the members of the group
    whose tokens begin so; without the divisor where ``normalise`` is off. Along a sample the corrections sum to that of
    r - mean_G r if nobody else ends alike.

    Units: weight is advantage per standard deviation, or per reward.
    Source: TEMPO, arXiv:2509.18314, and its code (fatebreaker/tempo, ``core_algos.py``, with eps 1e-6).
    """
    return Estimator(assign=partial(_prefix_tree, weight=weight, normalise=normalise, eps=eps), tokens=True)


def _prefix_tree(feedback: Feedback, advantage_BT: Tensor, *, weight: float, normalise: bool, eps: float) -> Tensor:
    change_BT = torch.zeros_like(advantage_BT)
    for rows in _members(feedback):
        token_GT, mask_GT = feedback.tokens[rows], feedback.mask_BT[rows]
        valid_G, reward_G = feedback.valid_B[rows], feedback.reward_B[rows]
        if not bool(valid_G.any()):
            continue
        root = reward_G[valid_G].mean()
        spread = reward_G[valid_G].std() + eps if normalise and int(valid_G.sum()) > 1 else 1.0
        for member, row in enumerate(rows.tolist()):
            alike_GT = shared_prefix(token_GT, mask_GT, member) & valid_G[:, None]
            count_T = alike_GT.sum(0)
            value_T = reward_G.where(valid_G, 0.0) @ alike_GT.double() / count_T.clamp(min=1)
            before_T = torch.cat([root[None], value_T[:-1]])
            known_T = mask_GT[member] & (count_T > 0)
            change_BT[row] = ((value_T - before_T) / spread).where(known_T, 0.0).to(change_BT)
    return advantage_BT + weight * change_BT


def both_ends(*, weight: float) -> Estimator:
    """The beginning and the end of a sample count more than its middle: a parabola over its kept decisions.

    A_t <- A_t (1 + weight (2 t / (L - 1) - 1)^2), t from 0 to L - 1; of a single decision 1 + weight.

    Units: weight is dimensionless, what the ends have more than the middle.
    Source: temporal advantage shaping of AVATAR, arXiv:2508.03100.
    """
    return Estimator(assign=partial(_both_ends, weight=weight))


def _both_ends(feedback: Feedback, advantage_BT: Tensor, *, weight: float) -> Tensor:
    place_BT = feedback.mask_BT.cumsum(1) - 1
    last_B1 = (feedback.length_B - 1).clamp(min=1)[:, None]
    from_middle_BT = (2 * place_BT / last_B1 - 1).to(advantage_BT)
    return advantage_BT * (1 + weight * from_middle_BT.square())


def prefix_count() -> Estimator:
    """A beginning that several members share is one step of all of them, and counts once.

    A_t <- A_t / n_t, n_t the members of the group whose tokens begin as this sample's do, up to and with t.

    Units: those of the advantage.
    Source: lambda-GRPO, arXiv:2509.21154, and its code (coli-saar/grpo-prm, ``InfPRMTree.loss_scales``).
    """
    return Estimator(assign=_prefix_count, tokens=True)


def _prefix_count(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    count_BT = torch.ones_like(advantage_BT)
    for rows in _members(feedback):
        token_GT, mask_GT = feedback.tokens[rows], feedback.mask_BT[rows]
        for member, row in enumerate(rows.tolist()):
            count_BT[row] = shared_prefix(token_GT, mask_GT, member).sum(0).clamp(min=1).to(count_BT)
    return advantage_BT / count_BT


def conflict_tokens(
    *, factor: float = 2.0, entropy_weight: float = 0.1, entropy_limit: float | None = 0.6931471805599453
) -> Estimator:
    """Tokens that better and worse members begin or end with alike are spared by the worse and taught by the better.

    A_t <- (A - entropy_weight H) f_start f_end / n, 0 where H > entropy_limit.

    H is the sample's mean entropy, n its tokens in conflict, at least 1. A token is in conflict where members of A > 0
    and of A < 0 have it at the same position, counted from the start or from the end, and so has every token before
    (after) it. There f of that end is ``factor`` where A > 0 and 0 where A < 0; elsewhere it is 1.

    Units: entropy_weight is advantage per nat; entropy_limit in nats (ln 2), None for none.
    Source: GTPO, arXiv:2508.03772, and its code (winstonsmith1897/GTPO, ``build_conflict_mask``), whose limit is 0.7.
    """
    assign = partial(_conflict, factor=factor, entropy_weight=entropy_weight, entropy_limit=entropy_limit)
    return Estimator(assign=assign, values=(ENTROPY,), tokens=True)


def _conflict(
    feedback: Feedback, advantage_BT: Tensor, *, factor: float, entropy_weight: float, entropy_limit: float | None
) -> Tensor:
    mask_BT = feedback.mask_BT
    sign_B = advantage_BT.where(mask_BT, 0.0).sum(1).sign()
    times_BT, count_BT = torch.ones_like(advantage_BT), torch.zeros_like(mask_BT)
    for rows in _members(feedback):
        token_GT, mask_GT, sign_G = feedback.tokens[rows], mask_BT[rows], sign_B[rows]
        for from_end in (False, True):
            conflict_GT = conflicts(token_GT, mask_GT, sign_G, from_end=from_end)
            count_BT[rows] |= conflict_GT
            ours_GT = torch.where(sign_G[:, None] > 0, factor, 0.0).to(times_BT)
            times_BT[rows] *= ours_GT.expand_as(conflict_GT).where(conflict_GT, 1.0)
    entropy_B1 = feedback.mean(feedback[ENTROPY])[:, None].to(advantage_BT)
    shaped_BT = (advantage_BT - entropy_weight * entropy_B1) * times_BT / count_BT.sum(1, keepdim=True).clamp(min=1)
    return shaped_BT if entropy_limit is None else shaped_BT.where(entropy_B1 <= entropy_limit, 0.0)


def shared_prefix(token_GT: Tensor, mask_GT: Tensor, member: int) -> Tensor:
    """Which members begin as one does, up to and with each position; a position without a decision is like another.

    Shapes: (G, T), bool (G, T) -> bool (G, T).
    """
    same_GT = (token_GT == token_GT[member]) & mask_GT & mask_GT[member]
    neither_GT = ~mask_GT & ~mask_GT[member]
    return (same_GT | neither_GT).int().cumprod(1).bool()


def conflicts(token_GT: Tensor, mask_GT: Tensor, sign_G: Tensor, *, from_end: bool) -> Tensor:
    """The kept tokens of each member's unbroken run that members of both signs have at the same position.

    Positions count kept decisions, from the start or from the end. A member of sign 0 has none.

    Shapes: (G, T), bool (G, T), (G,) -> bool (G, T).
    """
    order_GT = (mask_GT.flip(1) if from_end else mask_GT).int().argsort(dim=1, descending=True, stable=True)
    if from_end:
        order_GT = mask_GT.shape[1] - 1 - order_GT
    packed_GT, there_GT = token_GT.gather(1, order_GT), mask_GT.gather(1, order_GT)
    conflict_GT = torch.zeros_like(mask_GT)
    for member in range(len(packed_GT)):
        same_GT = (packed_GT == packed_GT[member]) & there_GT & there_GT[member]
        better_T, worse_T = same_GT[sign_G > 0].any(0), same_GT[sign_G < 0].any(0)
        conflict_GT[member] = (better_T & worse_T).int().cumprod(0).bool() & (sign_G[member] != 0)
    return torch.zeros_like(mask_GT).scatter(1, order_GT, conflict_GT)


def _members(feedback: Feedback) -> Iterator[Tensor]:
    """The rows of each group."""
    groups = feedback.groups
    for index_G, present_G in zip(groups.index_PG, groups.present_PG, strict=True):
        yield index_G[present_G]
