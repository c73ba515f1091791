"""DVPO (decoupled value policy optimization), arXiv:2502.16944.

The advantage of a decision is the return that a learned value function expects after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.value_credit import gae_BT
from mmgrpo.maths.feedback import Feedback
from mmgrpo.values import VALUE

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(VALUE,))
def expected_return(feedback: Feedback, advantage_BT: Tensor, *, gamma: float = 1.0) -> Tensor:
    """The learned value after each decision; after the last one the sample's reward.

    A_t = gamma V_{t+1}, and r after the last kept decision. It replaces the advantage.

    Units: those of the reward; gamma is dimensionless (1).
    Source: DVPO, arXiv:2502.16944, with the value of an action itself as its advantage: in a text, that of the next
        state.
    """
    better_BT = gae_BT(feedback, advantage_BT, gamma=gamma, decay=0.0, value=VALUE)
    return (better_BT + feedback[VALUE].to(better_BT)).where(feedback.mask_BT & feedback.valid_B[:, None], 0.0)
