"""Schedules: step or optimizer update -> number, one type for the configuration, reward weights and the learning rate.

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


def learning_rate_factor(update: int, *, schedule: str, num_updates: int, num_warmup: int, floor: float) -> float:
    """Factor on the learning rate: a linear ramp over ``num_warmup`` updates, then a schedule from 1 to ``floor``.

    Args:
        update: optimizer update, counted from 0.
        schedule: constant, linear or cosine.
        num_updates: the update at which the schedule reaches ``floor``.
        num_warmup: updates of the ramp.
        floor: last factor of linear and cosine.

    Returns:
        The factor, in [0, 1].   Source of cosine: SGDR, arXiv:1608.03983, eq. 5, without restarts.
    """
    numbers = {"start": 1.0, "end": floor, "steps": max(num_updates - num_warmup, 1), "begin": num_warmup}
    ramp = min((update + 1) / num_warmup, 1.0) if num_warmup else 1.0
    return min(ramp, SCHEDULES[schedule](update, **({} if schedule == "constant" else numbers)))


def _share(step: int, steps: int) -> float:
    if steps < 1:
        raise ConfigError(f"a schedule takes at least one step, got steps = {steps}")
    return min(max(step, 0) / steps, 1.0)
