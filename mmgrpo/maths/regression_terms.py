"""Terms that fit what the policy says to a number: its log-ratios to advantages, its word on itself to the rewards.

Axes: B samples, T decisions, P groups, G size of the largest group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.terms import Term

if TYPE_CHECKING:
    pass


REGRESSION_TERMS: Mapping[str, Callable[..., Term]] = MappingProxyType({})
"""Regressions by the name that a method's configuration uses; called with their numbers."""
