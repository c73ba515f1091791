"""Credit by how far the answers of a group agree.

A reward says of each sample which share of its group gives the same answer (``semantic_clusters``, or ``majority_vote``
with ``mode: share``), with a weight of 0 where it should say nothing else.

Axes: B samples, T decisions, G members of a group, N samples of all processes, P groups of all processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members

if TYPE_CHECKING:
    from torch import Tensor


def agreement(feedback: Feedback, shares: str) -> list[tuple[Tensor, Tensor]]:
    """The members of each group of which the reward says a share above 0, and their shares."""
    said = feedback.reward(shares)
    known_B = said.valid_B & (said.value_B > 0)
    of_members = (rows[known_B[rows]] for rows in members(feedback))
    return [(rows, said.value_B[rows]) for rows in of_members if len(rows)]
