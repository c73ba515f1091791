"""Schedules: the factor on the learning rate at an update, and on the weight of a reward at a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from mmgrpo.errors import ConfigError


def constant(update: int, *, num_updates: int, num_warmup: int, floor: float) -> float:
    """1 after a linear ramp over ``num_warmup`` updates.

    Units: updates -> factor in [0, 1].
    """
    return _ramp(update, num_warmup)


def linear(update: int, *, num_updates: int, num_warmup: int, floor: float) -> float:
    """A linear ramp, then a line from 1 down to ``floor`` at ``num_updates``.

    Units: updates -> factor in [0, 1].
    """
    return min(_ramp(update, num_warmup), 1 - (1 - floor) * _progress(update, num_updates, num_warmup))


def cosine(update: int, *, num_updates: int, num_warmup: int, floor: float) -> float:
    """A linear ramp, then half a cosine from 1 down to ``floor`` at ``num_updates``.

    Units: updates -> factor in [0, 1].   Source: SGDR, arXiv:1608.03983, eq. 5, without restarts.
    """
    wave = 0.5 * (1 + math.cos(math.pi * _progress(update, num_updates, num_warmup)))
    return min(_ramp(update, num_warmup), floor + (1 - floor) * wave)


def _ramp(update: int, num_warmup: int) -> float:
    return min((update + 1) / num_warmup, 1.0) if num_warmup else 1.0


def _progress(update: int, num_updates: int, num_warmup: int) -> float:
    return min(max(update - num_warmup, 0) / max(num_updates - num_warmup, 1), 1.0)


SCHEDULES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"constant": constant, "linear": linear, "cosine": cosine}
)
"""Schedules by the name that ``update.schedule`` uses."""


def constant_weight(step: int) -> float:
    """The weight as it is: a factor of 1 at every step.

    Units: steps -> factor.
    """
    return 1.0


def linear_weight(step: int, *, initial: float, final: float, start: int = 0, end: int) -> float:
    """A line from one factor at one step to another at a later one; level before and after.

    factor = initial + (final - initial) * (step - start) / (end - start), held within start <= step <= end.

    Units: steps, counted from 0 -> factor.   Raises: ConfigError unless start < end.
    """
    if not start < end:
        raise ConfigError(f"a linear schedule ends after it starts, got start = {start} and end = {end}")
    share = (min(max(step, start), end) - start) / (end - start)
    return initial + (final - initial) * share


WEIGHT_SCHEDULES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"constant": constant_weight, "linear": linear_weight}
)
"""Schedules of a reward's weight by the name that ``rewards[].schedule`` uses; called with the step, from 0."""
