"""Delta, and clip, of process rewards, arXiv:2410.15115.

The credit of a step is its process reward, optionally clipped, minus that of the next step, so that repeated good steps
earn nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.estimators.scoped_credit import from_parts
from mmgrpo.maths.feedback import Estimator, Scoped
from mmgrpo.maths.group_stats import Groups
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
def clipped_differences(*, reward: str, weight: float = 1.0, limit: float | None = None) -> Estimator:
    """How much a step's reward is above the next one's: repeating a good step earns nothing.

    A_t <- A_t + weight (v_k - v_{k+1}), k the step of t; of the last step v_k alone.
    Where there is a limit, v_k <- min(v_k - limit, 0) comes before. Summed from a step to the end it is v of that step.

    Units: weight is advantage per reward; limit in the reward's units.
    Source: clip and delta of Gao et al., arXiv:2410.15115, as the catalogue of ``research/`` gives them.
    """
    return from_parts(reward, weight, partial(_clip_delta, limit=limit))


def _clip_delta(scoped: Scoped, groups: Groups, *, limit: float | None) -> Tensor:
    del groups
    value_BS = scoped.value_BS.double().where(scoped.valid_BS, 0.0)
    if limit is not None:
        value_BS = (value_BS - limit).clamp(max=0).where(scoped.valid_BS, 0.0)
    return value_BS - torch.nn.functional.pad(value_BS[:, 1:], (0, 1))
