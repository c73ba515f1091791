"""GFPO, arXiv:2508.09726.

Only the most efficient members of a larger group are trained.
"""

from __future__ import annotations

from functools import partial

from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.feedback import Estimator
from mmgrpo.maths.filters import measure_of, most_efficient_B, require_positive, standardised_among


@ESTIMATORS.register
def among_most_efficient(*, count: int, by: str = "length", eps: float = 1e-4) -> Estimator:
    """An estimator: rewards standardised over the members that ``most_efficient`` keeps; the others get 0.

    A = (r - mean_S r) / (std_S r + eps), S the kept members of the group, sample std. It replaces the advantage.

    Units: any reward scale -> dimensionless; eps in the reward's units.   Raises: as ``most_efficient``.
    Source: GFPO, arXiv:2508.09726. Deviation: eps in the denominator.
    """
    keep = partial(most_efficient_B, count=require_positive(count), measure=measure_of(by))
    return Estimator(assign=partial(standardised_among, keep=keep, eps=eps), keeps=count)
