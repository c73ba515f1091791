"""Estimators by name: how the advantage of a sample becomes the advantage of each of its decisions."""

from __future__ import annotations

from collections.abc import Callable

from mmgrpo.maths.feedback import Estimator as Estimator
from mmgrpo.maths.registry import Registry

ESTIMATORS: Registry[Callable[..., Estimator]] = Registry()
"""Estimators by the name that a method's configuration uses; called with their numbers, applied in order."""
