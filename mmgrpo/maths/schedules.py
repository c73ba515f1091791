"""Schedules: step or optimizer update -> number, for keys of the configuration, reward weights and the learning rate.

``start`` and ``end`` are values, ``begin`` the first step of the change and ``steps`` its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry

SCHEDULES: Registry[Callable[..., Any]] = Registry()
"""Schedules by the name that ``schedules`` and ``rewards[].schedule`` use; called with the step, from 0."""

LEARNING_RATES: Registry[Callable[..., float]] = Registry()
"""Schedules of a learning rate by the name that ``update.optimizer.schedule`` uses; called with the update, from 0."""


@SCHEDULES.register
def constant(step: int, *, value: float = 1.0) -> float:
    """One number at every step.

    Units: steps, counted from 0 -> any.
    """
    return value


@SCHEDULES.register
def linear(step: int, *, start: float, end: float, steps: int, begin: int = 0) -> float:
    """A line from one number to another over so many steps; level before and after.

    value = start + (end - start) min(max(step - begin, 0) / steps, 1)

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless steps >= 1.
    """
    return start + (end - start) * _share(step - begin, steps)


@SCHEDULES.register
def cosine(step: int, *, start: float, end: float, steps: int, begin: int = 0) -> float:
    """Half a cosine from one number to another over so many steps; level before and after.

    value = end + (start - end) (1 + cos(pi x)) / 2, x = min(max(step - begin, 0) / steps, 1)

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless steps >= 1.
    """
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * _share(step - begin, steps)))


@SCHEDULES.register("step")
def step_value(step: int, *, values: Sequence[Any], at: Sequence[int]) -> Any:
    """One number after another, each from its step on.

    value = values[k], k = how many of ``at`` are at most the step

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless ``at`` rises and values are one more than it.
    """
    if len(values) != len(at) + 1 or list(at) != sorted(set(at)):
        raise ConfigError(f"a step schedule has one value more than steps, which rise, got {values} at {at}")
    return values[sum(change <= step for change in at)]


@LEARNING_RATES.register("constant")
def constant_rate(update: int, *, num_updates: int, warmup_steps: int = 0) -> float:
    """A ramp from 0 to 1 over ``warmup_steps`` updates, then 1.

    factor = min((update + 1) / warmup_steps, 1)

    Units: optimizer updates, counted from 0 -> factor on the learning rate, of ``num_updates`` in a run.
    Raises: ConfigError for ``warmup_steps`` below 0.
    """
    return _ramp(update, warmup_steps)


@LEARNING_RATES.register("linear")
def linear_rate(update: int, *, num_updates: int, warmup_steps: int = 0, floor: float = 0.0) -> float:
    """The ramp of ``constant``, then a line from 1 to ``floor`` at the last update.

    factor = min(ramp, 1 + (floor - 1) x), x = min(max(update - warmup_steps, 0) / (num_updates - warmup_steps), 1)

    Units: as ``constant``.   Raises: ConfigError for ``warmup_steps`` below 0, or ``floor`` outside [0, 1].
    """
    return _falling(linear, update, num_updates, warmup_steps, floor)


@LEARNING_RATES.register("cosine")
def cosine_rate(update: int, *, num_updates: int, warmup_steps: int = 0, floor: float = 0.0) -> float:
    """The ramp of ``constant``, then half a cosine from 1 to ``floor`` at the last update.

    factor = min(ramp, floor + (1 - floor) (1 + cos(pi x)) / 2), x as of ``linear``

    Units: as ``constant``.   Raises: ConfigError as ``linear``.
    Source: SGDR, arXiv:1608.03983, eq. 5, without restarts.
    """
    return _falling(cosine, update, num_updates, warmup_steps, floor)


def _ramp(update: int, warmup_steps: int) -> float:
    if warmup_steps < 0:
        raise ConfigError(f"warmup_steps of a learning rate must be at least 0, got {warmup_steps}")
    return min((update + 1) / warmup_steps, 1.0) if warmup_steps else 1.0


def _falling(schedule: Callable[..., float], update: int, num_updates: int, warmup_steps: int, floor: float) -> float:
    if not 0 <= floor <= 1:
        raise ConfigError(f"floor of a learning rate is a fraction of it, from 0 to 1, got {floor}")
    steps = max(num_updates - warmup_steps, 1)
    return min(_ramp(update, warmup_steps), schedule(update, start=1.0, end=floor, steps=steps, begin=warmup_steps))


def _share(step: int, steps: int) -> float:
    if steps < 1:
        raise ConfigError(f"a schedule takes at least one step, got steps = {steps}")
    return min(max(step, 0) / steps, 1.0)
