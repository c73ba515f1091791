"""Filters: which samples train, told after the advantages are known. Their normalisers count only what is kept.

Axes: B samples, P groups, G size of the largest group, N samples of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback
from mmgrpo.values import Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One filter, its numbers bound.

    Attributes:
        keep: (feedback, advantage_BT) -> bool keep_B.
        values: what the feedback must carry beside the log-probability.
    """

    keep: Callable[[Feedback, Tensor], Tensor]
    values: tuple[Value, ...] = ()


FILTERS: Mapping[str, Callable[..., Filter]] = MappingProxyType({})
"""Filters by the name that a method's configuration uses; called with their numbers, applied in order."""
