"""Parts of a sample in decisions: which part each decision wrote.

Axes: T decisions, S parts of a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def part_of_decisions(end_T: Tensor, start_S: Tensor, end_S: Tensor) -> Tensor:
    """The part that contains most of the text of each decision, the first of several; -1 where none contains any of it.

    Decision t wrote the characters end_{t-1} to end_t. A decision without characters, such as an end token, belongs to
    the part of the character before it.

    Shapes: (T,), (S,) x 2 -> (T,).   Units: characters of the text, or decisions where there is no text.
    """
    if len(start_S) == 0:
        return torch.full_like(end_T, -1)
    start_T = torch.nn.functional.pad(end_T[:-1], (1, 0))
    first_T = start_T.where(end_T > start_T, (start_T - 1).clamp(min=0))
    last_T = end_T.maximum(first_T + 1)
    overlap_TS = (last_T[:, None].minimum(end_S) - first_T[:, None].maximum(start_S)).clamp(min=0)
    return overlap_TS.argmax(1).where(overlap_TS.amax(1) > 0, -1)
