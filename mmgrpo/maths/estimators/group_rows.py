"""The rows of each group, and which of their tokens they have in common.

Axes: B samples, G rows of a group, T decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members

if TYPE_CHECKING:
    from torch import Tensor


def agreement(feedback: Feedback, shares: str) -> list[tuple[Tensor, Tensor]]:
    """The members of each group with a share above 0 by the reward, and their shares."""
    column = feedback.reward(shares)
    positive_B = column.valid_B & (column.value_B > 0)
    of_members = (rows[positive_B[rows]] for rows in members(feedback))
    return [(rows, column.value_B[rows]) for rows in of_members if len(rows)]


def shared_prefix(token_GT: Tensor, mask_GT: Tensor, member: int) -> Tensor:
    """Which members begin as one does, up to and with each position; a position without a decision is like another.

    Shapes: (G, T), bool (G, T) -> bool (G, T).
    """
    same_GT = (token_GT == token_GT[member]) & mask_GT & mask_GT[member]
    neither_GT = ~mask_GT & ~mask_GT[member]
    return (same_GT | neither_GT).int().cumprod(1).bool()


def group_rows(feedback: Feedback) -> Iterator[Tensor]:
    """The rows of each group."""
    groups = feedback.groups
    for index_G, present_G in zip(groups.index_PG, groups.present_PG, strict=True):
        yield index_G[present_G]
