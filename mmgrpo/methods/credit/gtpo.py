"""GTPO (trajectory-based), arXiv:2508.03772.

Tokens shared by better and worse samples at their start or end are left out of the negative updates and weighted by a
factor in the positive ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.group_rows import group_rows
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(ENTROPY,), tokens=True)
def conflict_tokens(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    factor: float = 2.0,
    entropy_weight: float = 0.1,
    entropy_limit: float | None = 0.6931471805599453,
) -> Tensor:
    """Common first or last tokens of better and worse members are not trained by the worse and trained more by the
    better.

    A_t <- (A - entropy_weight H) f_start f_end / n, 0 where H > entropy_limit.

    H is the sample's mean entropy, n its tokens in conflict, at least 1. A token is in conflict where members of A > 0
    and of A < 0 have it at the same position, counted from the start or from the end, and so has every token before
    (after) it. There f of that end is ``factor`` where A > 0 and 0 where A < 0; elsewhere it is 1.

    Units: entropy_weight is advantage per nat; entropy_limit in nats (ln 2), None for none.
    Source: GTPO, arXiv:2508.03772, and its code (winstonsmith1897/GTPO, ``build_conflict_mask``), with a limit of 0.7.
    """
    mask_BT = feedback.mask_BT
    sign_B = advantage_BT.where(mask_BT, 0.0).sum(1).sign()
    times_BT, count_BT = torch.ones_like(advantage_BT), torch.zeros_like(mask_BT)
    for rows in group_rows(feedback):
        token_GT, mask_GT, sign_G = feedback.tokens[rows], mask_BT[rows], sign_B[rows]
        for from_end in (False, True):
            conflict_GT = conflicts(token_GT, mask_GT, sign_G, from_end=from_end)
            count_BT[rows] |= conflict_GT
            factor_GT = torch.where(sign_G[:, None] > 0, factor, 0.0).to(times_BT)
            times_BT[rows] *= factor_GT.expand_as(conflict_GT).where(conflict_GT, 1.0)
    entropy_B1 = feedback.mean(feedback[ENTROPY])[:, None].to(advantage_BT)
    shaped_BT = (advantage_BT - entropy_weight * entropy_B1) * times_BT / count_BT.sum(1, keepdim=True).clamp(min=1)
    return shaped_BT if entropy_limit is None else shaped_BT.where(entropy_B1 <= entropy_limit, 0.0)


def conflicts(token_GT: Tensor, mask_GT: Tensor, sign_G: Tensor, *, from_end: bool) -> Tensor:
    """The kept tokens of each member's unbroken run that members of both signs have at the same position.

    Positions count kept decisions, from the start or from the end. A member of sign 0 has none.

    Shapes: (G, T), bool (G, T), (G,) -> bool (G, T).
    """
    order_GT = (mask_GT.flip(1) if from_end else mask_GT).int().argsort(dim=1, descending=True, stable=True)
    if from_end:
        order_GT = mask_GT.shape[1] - 1 - order_GT
    packed_GT, present_GT = token_GT.gather(1, order_GT), mask_GT.gather(1, order_GT)
    conflict_GT = torch.zeros_like(mask_GT)
    for member in range(len(packed_GT)):
        same_GT = (packed_GT == packed_GT[member]) & present_GT & present_GT[member]
        better_T, worse_T = same_GT[sign_G > 0].any(0), same_GT[sign_G < 0].any(0)
        conflict_GT[member] = (better_T & worse_T).int().cumprod(0).bool() & (sign_G[member] != 0)
    return torch.zeros_like(mask_GT).scatter(1, order_GT, conflict_GT)
