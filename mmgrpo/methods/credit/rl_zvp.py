"""RL-ZVP, arXiv:2509.21880.

Groups of equal rewards are trained by entropy instead of being skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(ENTROPY,))
def zero_variance_entropy(
    feedback: Feedback, advantage_BT: Tensor, *, alpha: float = 0.1, right: float = 0.5
) -> Tensor:
    """Groups of equal rewards train by entropy: uncertain steps of right answers, sure steps of wrong ones.

    A_t = alpha H_t in a group of equal rewards above ``right``, -alpha (max_k H_k - H_t) in one of equal lower rewards.
    The maximum is over the sample's kept decisions; other groups keep A.

    Units: alpha is advantage per nat (0.1); right is in the reward's units.
    Source: RL-ZVP, arXiv:2509.21880, eq. 5; its code was not found.
    """
    groups = feedback.groups
    valid_PG, reward_PG = groups.valid(feedback.valid_B), groups.matrix(feedback.reward_B)
    lowest_P = reward_PG.where(valid_PG, torch.inf).amin(1)
    highest_P = reward_PG.where(valid_PG, -torch.inf).amax(1)
    equal_B1 = groups.rows((lowest_P == highest_P)[:, None].expand_as(valid_PG) & valid_PG)[:, None]
    right_B1 = groups.rows((lowest_P > right)[:, None].expand_as(valid_PG))[:, None]
    entropy_BT = feedback[ENTROPY]
    wrong_BT = entropy_BT - entropy_BT.amax(1, keepdim=True)
    shaped_BT = alpha * entropy_BT.where(right_B1, wrong_BT).where(feedback.mask_BT, 0.0)
    return shaped_BT.to(advantage_BT).where(equal_B1, advantage_BT)
