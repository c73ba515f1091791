"""SRPO (sample routing), arXiv:2604.02288.

Samples that have a view get no advantage, since the view supervises them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.values import mask_of_view

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=lambda view: (mask_of_view(view),))
def mask_outside_view(feedback: Feedback, advantage_BT: Tensor, *, view: str) -> Tensor:
    """No advantage for the samples that have a view: a term of the view trains them in addition to the surrogate.

    A <- 0 where the row has the view.

    Units: those of the advantage.
    Source: the routing of SRPO, arXiv:2604.02288, which leaves wrong samples with a right peer to distillation.
    """
    return advantage_BT.where(~feedback.view_mask(view), 0.0)
