"""Curriculum GRPO (train long, think short), arXiv:2508.08940.

A setting is multiplied by a factor every fixed number of steps, within bounds.
"""

from __future__ import annotations

import math

from mmgrpo.errors import ConfigError
from mmgrpo.maths.schedules import SCHEDULES


@SCHEDULES.register("exponential")
def exponential_value(
    step: int, *, start: float, factor: float, every: int = 1, low: float = -math.inf, high: float = math.inf
) -> float:
    """A number that is multiplied every so many steps, within bounds.

    value = start factor ** floor(step / every), clamped to [low, high]

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless factor > 0 and every >= 1.
    Source: Curriculum GRPO, arXiv:2508.08940: B(t) = max(1, B0 gamma ** floor(t / T)).
    """
    if factor <= 0 or every < 1:
        raise ConfigError(f"an exponential schedule needs factor > 0 and every >= 1, got {factor} and {every}")
    return min(max(start * factor ** (step // every), low), high)
