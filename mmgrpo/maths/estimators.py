"""Estimators by name: how the advantage of a sample becomes the advantage of each of its decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mmgrpo.maths.entropy_credit import inverse_entropy, zero_variance_entropy
from mmgrpo.maths.feedback import Estimator as Estimator

ESTIMATORS: Mapping[str, Callable[..., Estimator]] = MappingProxyType(
    {"inverse_entropy": inverse_entropy, "zero_variance_entropy": zero_variance_entropy}
)
"""Estimators by the name that a method's configuration uses; called with their numbers, applied in order."""
