"""Rank-GRPO, arXiv:2510.20150.

Each item of a ranked list is scored by the discounted hits from its rank on, against the same rank of the group's other
samples.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.estimators.scoped_credit import by_scope, from_parts, standardised_BS, to_end
from mmgrpo.maths.feedback import Estimator, Scoped
from mmgrpo.maths.group_stats import Groups
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
def ranks(*, reward: str, weight: float = 1.0, discounted: bool = True, eps: float = 1e-4) -> Estimator:
    """An item of a ranked list by the hits from its rank on, against the same rank of the group's other samples.

    A_t <- A_t + weight z(v_k), k the rank of t, v_k = sum_{j >= k} hit_j / log2(j + 1), or hit_k.
    The sum where ``discounted``; ranks count from 1; z is as in ``scoped``.

    Units: weight is advantage per standard deviation.
    Source: Rank-GRPO, arXiv:2510.20150, and its code (yaochenzhu/Rank-GRPO), log decay and exponential decay to
        infinity. Left out: its shaping of the end token and of items beyond the list.
    """
    values = partial(_ranks, eps=eps) if discounted else partial(by_scope, eps=eps)
    return from_parts(reward, weight, values)


def _ranks(scoped: Scoped, groups: Groups, *, eps: float) -> Tensor:
    discount_S = (torch.arange(scoped.value_BS.shape[1], dtype=torch.float64) + 2).log2()
    gain_BS = scoped.value_BS.double().where(scoped.valid_BS, 0.0) / discount_S
    return standardised_BS(to_end(gain_BS), scoped.valid_BS, groups, eps)
