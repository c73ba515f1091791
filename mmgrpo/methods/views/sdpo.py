"""SDPO (self-distillation), arXiv:2601.20802.

Only samples that have a view, such as a prompt with a peer's right answer, are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter
from mmgrpo.values import mask_of_view

if TYPE_CHECKING:
    from torch import Tensor


@FILTERS.register
@sample_filter(values=lambda view: (mask_of_view(view),))
def in_view(feedback: Feedback, advantage_BT: Tensor, *, view: str) -> Tensor:
    """The members that have a view, such as that of a peer's right answer.

    Units: view is a name of ``objective.views``.
    Source: SDPO, arXiv:2601.20802, and its code (lasgroup/SDPO), with the mean over those that have a teacher's prompt.
    """
    del advantage_BT
    return feedback.view_mask(view).any(1)
