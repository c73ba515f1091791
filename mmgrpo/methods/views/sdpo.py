"""SDPO (self-distillation), arXiv:2601.20802.

Only samples that have a view, such as a prompt with a peer's right answer, are kept.
"""

from __future__ import annotations

from mmgrpo.maths.filters import FILTERS, Filter
from mmgrpo.values import seen_in


@FILTERS.register
def in_view(*, view: str) -> Filter:
    """The members that have a view, such as that of a peer's right answer.

    Units: view is a name of ``views``.
    Source: SDPO, arXiv:2601.20802, and its code (lasgroup/SDPO), whose mean is over those that have a teacher's prompt.
    """
    return Filter(keep=lambda feedback, advantage_BT: feedback.seen(view).any(1), values=(seen_in(view),))
