"""GFPO, arXiv:2508.09726.

Only the most efficient members of a larger group are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import most_efficient_B, require_measured, standardized_among

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(keeps=lambda count: count, check=require_measured)
def among_most_efficient(
    feedback: Feedback, advantage_BT: Tensor, *, count: int, by: str = "length", eps: float = 1e-4
) -> Tensor:
    """Rewards standardized over the members that ``most_efficient`` keeps; the others get 0.

    A = (r - mean_S r) / (std_S r + eps), S the kept members of the group, sample std. It replaces the advantage.

    Units: any reward scale -> dimensionless; eps in the reward's units.   Raises: as ``most_efficient``.
    Source: GFPO, arXiv:2508.09726. Deviation: eps in the denominator.
    """
    return standardized_among(feedback, advantage_BT, most_efficient_B(feedback, count=count, by=by), eps=eps)
