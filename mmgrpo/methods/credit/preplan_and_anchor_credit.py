"""Preplan-and-Anchor credit, arXiv:2510.13554.

Decisions of positive advantage that later ones attend to get a larger weight, part of which goes to the decision that
prepares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.selections import quantile
from mmgrpo.system.lazy import torch
from mmgrpo.values import attention_distance, attention_influence

if TYPE_CHECKING:
    from torch import Tensor


def _check_anchors(share: float, reach: int) -> None:
    if not 0 < share < 1 or reach < 1:
        raise ConfigError(f"anchors needs a share between 0 and 1 and a reach of 1 or more, got {share} and {reach}")


@ESTIMATORS.register
@estimator(
    values=lambda window, near, far: (attention_distance(window), attention_influence(near, far)), check=_check_anchors
)
def anchors(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    share: float = 0.4,
    factor: float = 1.5,
    back: float = 0.5,
    reach: int = 3,
    window: int = 10,
    near: int = 10,
    far: int = 50,
) -> Tensor:
    """Decisions that later ones look at count more, and give a part of it to the one that prepared them.

    A <- A (1 + (factor - 1) g) where A > 0.

    g is 1 of an anchor, 1 - back of one that is locally dominated, and back more of the decision that introduces it.

    Anchors are the ``share`` of a sample's decisions that is looked at the most. One is locally dominated if it looks
    no further back than the sample's median, and if the distance changes at one of the ``reach`` decisions before it by
    the sample's median change or more; the largest such change introduces it. A change is that to the next decision.

    Units: share, factor and back are dimensionless; reach, window, near and far count decisions.
    Raises: ConfigError for a share outside 0 .. 1 or a reach below 1.
    Source: arXiv:2510.13554, eq. 13 to 18, coupled rhythm credit. Deviation: the thresholds of being dominated, which
        the paper leaves open, are medians.
    """
    more_BT = torch.zeros_like(advantage_BT)
    distance_BT, influence_BT = feedback[attention_distance(window)], feedback[attention_influence(near, far)]
    for row, mask_T in enumerate(feedback.mask_BT):
        if bool(mask_T.any()):
            rhythm_n = _rhythm(distance_BT[row][mask_T], influence_BT[row][mask_T], share, back, reach)
            more_BT[row, mask_T] = (factor - 1) * rhythm_n.to(more_BT)
    return advantage_BT * (1 + more_BT.where(advantage_BT > 0, 0.0))


def _rhythm(distance_n: Tensor, influence_n: Tensor, share: float, back: float, reach: int) -> Tensor:
    """The bonus of each decision of a sample."""
    change_n = torch.cat([distance_n.diff().abs(), distance_n.new_zeros(1)])
    anchor_n = influence_n >= quantile(influence_n, 1 - share)
    before_nk = torch.cat([change_n.new_full((reach,), -torch.inf), change_n[:-1]]).unfold(0, reach, 1)
    largest_n, at_n = before_nk.max(1)
    dominated_n = anchor_n & (distance_n <= distance_n.median()) & (largest_n >= change_n.median())
    intro = (torch.arange(len(change_n)) - reach + at_n)[dominated_n]
    rhythm_n = anchor_n.to(distance_n) - back * dominated_n.to(distance_n)
    introduces_n = torch.zeros_like(anchor_n).index_fill(0, intro, True)
    return rhythm_n + back * introduces_n.to(distance_n)
