"""Rank-GRPO, arXiv:2510.20150.

Each item of a ranked list is scored by the discounted hits from its rank on, against the same rank of the group's other
samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.scoped_credit import standardized_BS, to_end, with_parts
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def ranks(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    reward: str,
    weight: float = 1.0,
    discounted: bool = True,
    eps: float = 1e-4,
) -> Tensor:
    """An item of a ranked list by the hits from its rank on, against the same rank of the group's other samples.

    A_t <- A_t + weight z(v_k), k the rank of t, v_k = sum_{j >= k} hit_j / log2(j + 1), or hit_k.
    The sum where ``discounted``; ranks count from 1; z is as in ``scoped``.

    Units: weight is advantage per standard deviation.
    Source: Rank-GRPO, arXiv:2510.20150, and its code (yaochenzhu/Rank-GRPO), log decay and exponential decay to
        infinity. Left out: its shaping of the end token and of items beyond the list.
    """
    scores = feedback.scopes(reward)
    gain_BS = scores.value_BS.double()
    if discounted:
        discount_S = (torch.arange(gain_BS.shape[1], dtype=torch.float64) + 2).log2()
        gain_BS = to_end(gain_BS.where(scores.valid_BS, 0.0) / discount_S)
    score_BS = standardized_BS(gain_BS, scores.valid_BS, feedback.groups, eps)
    return with_parts(advantage_BT, scores, score_BS, weight)
