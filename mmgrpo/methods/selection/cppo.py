"""CPPO, arXiv:2503.22342.

Only the samples of the largest absolute advantages are trained.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, descending_order, members, sample_filter
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_largest_advantages(rate: float) -> None:
    if not 0 <= rate < 1:
        raise ConfigError(f"the pruning rate must be from 0 to below 1, got {rate}")


@FILTERS.register
@sample_filter(check=_check_largest_advantages)
def largest_advantages(feedback: Feedback, advantage_BT: Tensor, *, rate: float) -> Tensor:
    """The members with the largest absolute advantages.

    keep = the max(floor(n (1 - rate)), 1) largest |A| of n members.

    Units: rate is dimensionless, the share that is left out.   Raises: ConfigError for a rate outside 0 .. 1.
    Source: CPPO, arXiv:2503.22342, and its code (lzhxmu/CPPO); per group, as the paper has it.
    """
    size_B = feedback.mean(advantage_BT.abs())
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        # 10 (1 - 0.9) is a little below 1
        num = max(math.floor(len(rows) * (1 - rate) + 1e-9), 1)
        keep_B[rows[descending_order(size_B[rows])[:num]]] = True
    return keep_B
