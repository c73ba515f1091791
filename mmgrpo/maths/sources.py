"""The source of a row: the numbers of ``mmgrpo.types.Source``, without the imports of that module.

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

ON_POLICY, REPLAY, DEMONSTRATION = 0, 1, 2

SOURCES: Mapping[str, int] = MappingProxyType(
    {"on_policy": ON_POLICY, "replay": REPLAY, "demonstration": DEMONSTRATION}
)
"""Sources by the names that a configuration uses."""

OFF_POLICY = (REPLAY, DEMONSTRATION)
"""The sources of rows that were not sampled at this step."""


def is_from(decisions: Decisions, sources: Sequence[int]) -> Tensor:
    """Whether the row of each decision is from one of these sources; without ``source_BT``, all were sampled.

    Shapes: -> bool (B, T).
    """
    if decisions.source_BT is None:
        return torch.full_like(decisions.mask_BT, ON_POLICY in sources)
    return torch.isin(decisions.source_BT, torch.tensor(list(sources), device=decisions.source_BT.device))
