"""Schedules: step -> number, for keys of the configuration and factors on reward weights and learning rates.

``start`` and ``end`` are values, ``begin`` is the first step of the change and ``steps`` its length. A warm-up is a
ramp from 0 to the first value over ``warmup_steps``; a change begins after it. A step is a rollout of the run; for a
learning rate it is an optimizer update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry

SCHEDULES: Registry[Callable[..., Any]] = Registry(arguments=("step",))
"""Schedules by the name that ``schedules``, ``rewards[].schedule`` and ``update.optimizer.schedule`` use; called with
the step, from 0."""


@SCHEDULES.register
def constant(step: int, *, value: float = 1.0, warmup_steps: int = 0) -> float:
    """One number at every step, after the warm-up.

    Units: steps, counted from 0 -> any.   Raises: ConfigError for ``warmup_steps`` below 0.
    """
    return _warmed_up(value, step, warmup_steps)


@SCHEDULES.register
def linear(step: int, *, start: float, end: float, steps: int, begin: int = 0, warmup_steps: int = 0) -> float:
    """A line from one number to another over so many steps; level before and after.

    value = start + (end - start) min(max(step - begin, 0) / steps, 1)

    With a warm-up the change begins at ``warmup_steps`` at the earliest, and the ramp to ``start`` is before it.

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless steps >= 1 and warmup_steps >= 0.
    """
    share = _share(step - max(begin, warmup_steps), steps)
    return _warmed_up(start + (end - start) * share, step, warmup_steps)


@SCHEDULES.register
def cosine(step: int, *, start: float, end: float, steps: int, begin: int = 0, warmup_steps: int = 0) -> float:
    """Half a cosine from one number to another over so many steps; level before and after.

    value = end + (start - end) (1 + cos(pi x)) / 2, x = min(max(step - begin, 0) / steps, 1)

    With a warm-up the change begins at ``warmup_steps`` at the earliest, and the ramp to ``start`` is before it.

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless steps >= 1 and warmup_steps >= 0.
    Source: SGDR, arXiv:1608.03983, eq. 5, without restarts.
    """
    share = _share(step - max(begin, warmup_steps), steps)
    return _warmed_up(end + (start - end) * 0.5 * (1 + math.cos(math.pi * share)), step, warmup_steps)


@SCHEDULES.register("step")
def step_value(step: int, *, values: Sequence[Any], at: Sequence[int]) -> Any:
    """One number after another, each from its step on.

    value = values[k], k = how many of ``at`` are at most the step

    Units: steps, counted from 0 -> any.   Raises: ConfigError unless ``at`` rises and values are one more than it.
    """
    if len(values) != len(at) + 1 or list(at) != sorted(set(at)):
        raise ConfigError(f"a step schedule has one value more than steps, which rise, got {values} at {at}")
    return values[sum(change <= step for change in at)]


def _warmed_up(value: float, step: int, warmup_steps: int) -> float:
    """The value times min((step + 1) / warmup_steps, 1)."""
    if warmup_steps < 0:
        raise ConfigError(f"warmup_steps of a schedule must be at least 0, got {warmup_steps}")
    return value if step + 1 >= warmup_steps else value * ((step + 1) / warmup_steps)


def _share(step: int, steps: int) -> float:
    if steps < 1:
        raise ConfigError(f"a schedule takes at least one step, got steps = {steps}")
    return min(max(step, 0) / steps, 1.0)
