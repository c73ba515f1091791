"""Positions and labels of axis ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgrpo.report.number_format import MINUS, power_of_ten


def enclosing_ticks(low: float, high: float) -> list[float]:
    """About four round numbers that enclose the range, including zero if it is near."""
    if 0 < low < high / 2:
        low = 0.0
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        margin = abs(high) / 10 or 1.0
        low, high = low - margin, high + margin
    unit = _round_up((high - low) / 4)
    return [index * unit for index in range(math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9) + 1)]


def integer_ticks(first: float, last: float) -> list[float]:
    """About six round integers within the range."""
    unit = max(1, round(_round_up((last - first) / 6 or 1)))
    return [index * unit for index in range(math.ceil(first / unit), math.floor(last / unit) + 1)]


def tick_labels(ticks: Sequence[float]) -> tuple[list[str], str]:
    """The labels of the ticks, and their unit if it is not 1."""
    exponent = math.floor(math.log10(max(abs(tick) for tick in ticks)))
    shift = 0 if -2 <= exponent < 6 else exponent
    unit = (ticks[1] - ticks[0]) / 10**shift
    decimals = next(places for places in range(16) if abs(round(unit, places) - unit) < 1e-6 * unit)
    labels = [f"{round(tick / 10**shift, decimals) + 0.0:,.{decimals}f}".replace("-", MINUS) for tick in ticks]
    return labels, f"in {power_of_ten(shift)}" if shift else ""


def _round_up(value: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= value * (1 - 1e-9))
