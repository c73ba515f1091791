"""lambda-GRPO, arXiv:2509.21154.

A prefix that several samples share counts as one step of all of them.
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
def prefix_count(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """A prefix that several members share counts once.

    A_t <- A_t / n_t, n_t the members of the group that share this sample's tokens up to and including t.

    Units: those of the advantage.
    Source: lambda-GRPO, arXiv:2509.21154, and its code (coli-saar/grpo-prm, ``InfPRMTree.loss_scales``).
    """
    count_BT = torch.ones_like(advantage_BT)
    for rows in group_rows(feedback):
        token_GT, mask_GT = feedback.tokens[rows], feedback.mask_BT[rows]
        for member, row in enumerate(rows.tolist()):
            count_BT[row] = shared_prefix(token_GT, mask_GT, member).sum(0).clamp(min=1).to(count_BT)
    return advantage_BT / count_BT
