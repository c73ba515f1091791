"""Credit by which tokens the members of a group have in common: estimators that read the tokens.

Tokens of different members are compared position by position, over kept decisions alone.

Axes: B samples, T decisions, G members of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback

if TYPE_CHECKING:
    from torch import Tensor


def shared_prefix(token_GT: Tensor, mask_GT: Tensor, member: int) -> Tensor:
    """Which members begin as one does, up to and with each position; a position without a decision is like another.

    Shapes: (G, T), bool (G, T) -> bool (G, T).
    """
    same_GT = (token_GT == token_GT[member]) & mask_GT & mask_GT[member]
    neither_GT = ~mask_GT & ~mask_GT[member]
    return (same_GT | neither_GT).int().cumprod(1).bool()


def members(feedback: Feedback) -> Iterator[Tensor]:
    """The rows of each group."""
    groups = feedback.groups
    for index_G, present_G in zip(groups.index_PG, groups.present_PG, strict=True):
        yield index_G[present_G]
