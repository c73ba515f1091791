"""EFRame (without its replay), arXiv:2506.22200.

In groups of a minimum size, only samples with an absolute advantage above a threshold are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter
from mmgrpo.maths.filters import members as rows_of_members
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_beyond(size: float) -> None:
    if size < 0:
        raise ConfigError(f"beyond keeps advantages larger than a number of 0 or more, got {size}")


@FILTERS.register
@sample_filter(check=_check_beyond)
def beyond(feedback: Feedback, advantage_BT: Tensor, *, size: float, members: int = 2) -> Tensor:
    """Of groups of at least so many members, those with an advantage larger than a number; all members of other groups.

    keep = |A| > size, or fewer than ``members`` rows in the group.

    Units: size in those of the advantage; members are rows.   Raises: ConfigError for a number below 0.
    Source: EFRame, arXiv:2506.22200, and its code (597358816/EFRame, ``ray_trainer.py``, ``_select_by_advantage``).
    """
    large_B, keep_B = feedback.mean(advantage_BT.abs()) > size, torch.zeros_like(feedback.valid_B)
    for rows in rows_of_members(feedback):
        keep_B[rows] = large_B[rows] if len(rows) >= members else True
    return keep_B
