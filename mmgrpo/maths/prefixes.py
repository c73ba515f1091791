"""Prefixes that rows share: which decisions are taken in one state.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def prefix_states(token_BT: Tensor, exists_BT: Tensor, root_B: Tensor) -> Tensor:
    """The state before each decision: rows of one root with equal tokens before it share its id.

    s_t = (root, tokens 0 .. t - 1), numbered: the roots keep their own numbers at t = 0, later states count on, column
    by column; positions without a token are separate states.

    Shapes: integers (B, T), bool (B, T), integers (B,) -> integers (B, T).
    Raises: ShapeError if the shapes differ, or a root is negative.
    Source: own; a trie of the rows.
    """
    B, T = token_BT.shape
    if exists_BT.shape != (B, T) or root_B.shape != (B,) or bool((root_B < 0).any()):
        raise ShapeError(f"prefix_states needs (B, T), (B, T) and (B,) >= 0, got {B, T}, {tuple(exists_BT.shape)}")
    state_BT = torch.empty_like(token_BT)
    state_B = root_B.to(token_BT)
    for t in range(T):
        state_BT[:, t] = state_B
        if t + 1 == T:
            break
        unique_B = -1 - torch.arange(B).to(token_BT)
        step_B2 = torch.stack([state_B, token_BT[:, t].where(exists_BT[:, t + 1], unique_B)], dim=1)
        state_B = int(state_B.max()) + 1 + step_B2.unique(dim=0, return_inverse=True)[1]
    return state_BT
