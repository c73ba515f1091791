"""G2RPO-A, arXiv:2508.13023.

A guidance setting rises when a metric falls, and falls when it rises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from mmgrpo.maths.controllers import CONTROLLERS


@CONTROLLERS.register
def against_trend(value: float, measured: Sequence[float], *, low: float = 0.0, high: float = math.inf) -> float:
    """A number that grows by the factor by which a metric falls, and shrinks as it rises.

    value' = value mean(measured before the last) / last measured, clamped to [low, high]; the same where either is 0

    Shapes: two measurements or more.   Units: of value.
    Source: G2RPO-A, arXiv:2508.13023, and its code (T-Lab-CUHKSZ/G2RPO-A, ``g2rpoa_trainer.py``,
        _compute_new_guidance_length), every third step.
    """
    *before, last = measured
    return min(max(value * fmean(before) / last, low), high) if fmean(before) > 0 and last > 0 else value
