"""GRPO with process supervision, arXiv:2402.03300.

Step rewards are standardized over all steps of the group and summed from each step to the end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.estimators.scoped_credit import by_group, from_parts, to_end
from mmgrpo.maths.feedback import Estimator, Scoped
from mmgrpo.maths.group_stats import Groups
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
def process_supervision(*, reward: str, weight: float = 1.0, eps: float = 1e-4) -> Estimator:
    """Step rewards standardised over all steps of the group, summed from each step to the end.

    A_t <- A_t + weight sum_{j >= step of t} z_j, z = (v - mean) / (std + eps).
    Mean and sample std are over every step of every sample of the group.

    Units: weight is advantage per standard deviation.
    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1.3.
    """
    return from_parts(reward, weight, partial(_process, eps=eps))


def _process(scoped: Scoped, groups: Groups, *, eps: float) -> Tensor:
    value_SPG, valid_SPG = by_group(scoped.value_BS.double(), scoped.valid_BS, groups)
    S, P, G = value_SPG.shape
    if S * G < 2:
        return torch.zeros_like(scoped.value_BS, dtype=torch.float64)
    value_PN, valid_PN = (each.transpose(0, 1).reshape(P, S * G) for each in (value_SPG, valid_SPG))
    score_PN = group_advantage(value_PN, valid_PN, eps=eps)
    return to_end(groups.rows(score_PN.reshape(P, S, G).transpose(0, 1)).T)
