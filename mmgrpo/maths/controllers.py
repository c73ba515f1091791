"""Controllers: schedules that follow a metric of the run.

Each is called as (value, measured) after a step, with the current number and one metric of that step, and returns the
number of the next. With ``every`` it is called once in so many steps, with their mean; those of ``SERIES`` with the
metric of each, oldest first. To add one: a function and a line in ``CONTROLLERS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from mmgrpo.maths.registry import Registry

CONTROLLERS: Registry[Callable[..., float]] = Registry(arguments=("value", "measured"))
"""Controllers by the name that ``schedules`` uses; besides its numbers each takes the ``metric`` that it follows, and
``every``, the number of steps between its moves."""


@CONTROLLERS.register
def dual_ascent(
    value: float, measured: float, *, target: float, rate: float, low: float = 0.0, high: float = math.inf
) -> float:
    """A multiplier that grows while a metric is below its target and shrinks while it is above.

    value' = value + rate (target - measured), clamped to [low, high]

    A negative ``rate`` keeps a metric below its target.

    Units: ``rate`` is of value per metric.   Source: projected dual ascent, as in F-GRPO's constraints.
    """
    return min(max(value + rate * (target - measured), low), high)


@CONTROLLERS.register
def adaptive_kl(
    value: float,
    measured: float,
    *,
    target: float,
    rate: float = 0.1,
    clip: float = 0.2,
    low: float = 0.0,
    high: float = math.inf,
) -> float:
    """A weight of the divergence that grows while the divergence is above its target.

    value' = value (1 + rate clip(measured / target - 1, -clip, clip)), clamped to [low, high]

    Units: ``measured`` and ``target`` in nats; ``rate`` is the step's share of the horizon.
    Source: Ziegler et al., arXiv:1909.08593, sec. 2.2, and TRL's AdaptiveKLController, where rate = samples / horizon.
    """
    error = min(max(measured / target - 1, -clip), clip)
    return min(max(value * (1 + rate * error), low), high)


SERIES = frozenset({"against_trend"})
"""Controllers that take the metric of each step, so that they need an ``every`` of 2 or more."""

METRICS: Mapping[str, str] = MappingProxyType({"adaptive_kl": "policy/kl_mean"})
"""The default metric of a controller."""
