"""RAIF, arXiv:2506.01413.

Samples with reasoning are kept only if they do no worse than answers without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, members, sample_filter
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@FILTERS.register
@sample_filter(columns=lambda column: (column,))
def at_least_column(feedback: Feedback, advantage_BT: Tensor, *, column: str) -> Tensor:
    """The members with a reward of at least a number of their data row, such as that of an answer without a thought.

    keep = r >= column.

    Units: those of the reward.
    Source: RAIF, arXiv:2506.01413, and its code (yuleiqin/RAIF, ``enforce_superior_CoT``).
    """
    del advantage_BT
    return feedback.valid_B & (feedback.length_B > 0) & (feedback.reward_B >= feedback.column(column))


@FILTERS.register
@sample_filter()
def outdo_begun(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """The members that wrote all of their answer, unless each did worse than every one with a forced beginning.

    keep = all of it was sampled, and max r of such members of the group >= min r of the begun ones, if there are any.

    Units: none.
    Source: RAIF, arXiv:2506.01413, and its code (yuleiqin/RAIF, ``replay_buffer.py``): begun with an empty thought.
    """
    del advantage_BT
    begun_B, keep_B = ~feedback.mask_BT[:, 0], torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        prefix_rows, full_rows = rows[begun_B[rows]], rows[~begun_B[rows]]
        outdone = (
            len(prefix_rows) > 0
            and len(full_rows) > 0
            and feedback.reward_B[full_rows].max() < feedback.reward_B[prefix_rows].min()
        )
        keep_B[full_rows] = not outdone
    return keep_B
