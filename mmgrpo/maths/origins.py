"""Where a row comes from, as maths knows it: the numbers of ``mmgrpo.types.Origin``, without its imports.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

DRAWN, REPLAYED, GIVEN = 0, 1, 2

ORIGINS: Mapping[str, int] = MappingProxyType({"on_policy": DRAWN, "replay": REPLAYED, "demonstration": GIVEN})
"""Origins by the names that a configuration uses."""

READ = (REPLAYED, GIVEN)
"""The origins of rows that were not sampled at this step."""


def of_origin(decisions: Decisions, origins: Sequence[int]) -> Tensor:
    """Whether each decision's row is of one of these origins; without origins, all were sampled.

    Shapes: -> bool (B, T).
    """
    if decisions.origin_BT is None:
        return torch.full_like(decisions.mask_BT, DRAWN in origins)
    return torch.isin(decisions.origin_BT, torch.tensor(list(origins), device=decisions.origin_BT.device))
