"""TEMPO, arXiv:2509.18314.

The credit of a token is the change of the mean reward over the samples that share the prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.group_rows import group_rows, shared_prefix
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(tokens=True)
def prefix_tree(
    feedback: Feedback, advantage_BT: Tensor, *, weight: float = 1.0, normalize: bool = True, eps: float = 1e-4
) -> Tensor:
    """The change by a token of the mean reward of the members with its prefix: credit where the group branches.

    A_t <- A_t + weight * (V(prefix with t) - V(prefix)) / (std_G r + eps), V = mean reward of the members of the group
    with this prefix; without the divisor where ``normalize`` is off. Along a sample the corrections sum to that of r -
    mean_G r if no other member ends alike.

    Units: weight is advantage per standard deviation, or per reward.
    Source: TEMPO, arXiv:2509.18314, and its code (fatebreaker/tempo, ``core_algos.py``, with eps 1e-6).
    """
    change_BT = torch.zeros_like(advantage_BT)
    for rows in group_rows(feedback):
        token_GT, mask_GT = feedback.tokens[rows], feedback.mask_BT[rows]
        valid_G, reward_G = feedback.valid_B[rows], feedback.reward_B[rows]
        if not bool(valid_G.any()):
            continue
        root = reward_G[valid_G].mean()
        spread = reward_G[valid_G].std() + eps if normalize and int(valid_G.sum()) > 1 else 1.0
        for member, row in enumerate(rows.tolist()):
            alike_GT = shared_prefix(token_GT, mask_GT, member) & valid_G[:, None]
            count_T = alike_GT.sum(0)
            value_T = reward_G.where(valid_G, 0.0) @ alike_GT.double() / count_T.clamp(min=1)
            before_T = torch.cat([root[None], value_T[:-1]])
            has_value_T = mask_GT[member] & (count_T > 0)
            change_BT[row] = ((value_T - before_T) / spread).where(has_value_T, 0.0).to(change_BT)
    return advantage_BT + weight * change_BT
