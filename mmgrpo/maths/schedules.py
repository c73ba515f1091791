"""Schedules: factors on the learning rate at an update and on the weight of a reward at a step, numbers at a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry

VALUE_SCHEDULES: Registry[Callable[..., Any]] = Registry()
"""Schedules of a number of the configuration by the name that ``schedules`` uses; called with the step, from 0."""


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
    return initial + (final - initial) * _between(step, start, end)


def cosine_weight(step: int, *, initial: float, final: float, start: int = 0, end: int) -> float:
    """Half a cosine from one factor at one step to another at a later one; level before and after.

    factor = final + (initial - final) (1 + cos(pi x)) / 2, x = (step - start) / (end - start) held within 0 .. 1.

    Units: steps, counted from 0 -> factor.   Raises: ConfigError unless start < end.
    """
    return final + (initial - final) * 0.5 * (1 + math.cos(math.pi * _between(step, start, end)))


def _between(step: int, start: int, end: int) -> float:
    """How far a step is from a first one to a last one, held within 0 .. 1."""
    if not start < end:
        raise ConfigError(f"a schedule of a weight ends after it starts, got start = {start} and end = {end}")
    return (min(max(step, start), end) - start) / (end - start)


WEIGHT_SCHEDULES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"constant": constant_weight, "linear": linear_weight, "cosine": cosine_weight}
)
"""Schedules of a reward's weight by the name that ``rewards[].schedule`` uses; called with the step, from 0."""


@VALUE_SCHEDULES.register("linear")
def linear_value(step: int, *, start: float, end: float, steps: int, begin: int = 0) -> float:
    """A line from one number to another over so many steps; level before and after.

    value = start + (end - start) min(max(step - begin, 0) / steps, 1)

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless steps >= 1.
    """
    return start + (end - start) * _share(step - begin, steps)


@VALUE_SCHEDULES.register("cosine")
def cosine_value(step: int, *, start: float, end: float, steps: int, begin: int = 0) -> float:
    """Half a cosine from one number to another over so many steps; level before and after.

    value = end + (start - end) (1 + cos(pi x)) / 2, x = min(max(step - begin, 0) / steps, 1)

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless steps >= 1.
    """
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * _share(step - begin, steps)))


@VALUE_SCHEDULES.register("step")
def step_value(step: int, *, values: Sequence[Any], at: Sequence[int]) -> Any:
    """One number after another, each from its step on.

    value = values[k], k = how many of ``at`` are at most the step

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless ``at`` rises and values are one more than it.
    """
    if len(values) != len(at) + 1 or list(at) != sorted(set(at)):
        raise ConfigError(f"a step schedule has one value more than steps, which rise, got {values} at {at}")
    return values[sum(change <= step for change in at)]


def _share(step: int, steps: int) -> float:
    if steps < 1:
        raise ConfigError(f"a schedule takes at least one step, got steps = {steps}")
    return min(max(step, 0) / steps, 1.0)
