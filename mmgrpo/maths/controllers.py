"""Controllers: a number of the configuration that follows what the run measures of itself.

Each is called as (value, measured) after a step, with the number so far and one metric of that step, and gives the
number of the next. With ``every`` it is called once in so many steps, with their mean; those of ``SERIES`` with the
metric of each, oldest first. To add one: a function and a line in ``CONTROLLERS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from mmgrpo.maths.registry import Registry


def dual_ascent(
    value: float, measured: float, *, target: float, rate: float, low: float = 0.0, high: float = math.inf
) -> float:
    """A multiplier that grows while a metric is below its target and shrinks while it is above.

    value' = value + rate (target - measured), held within [low, high]

    A negative ``rate`` holds a metric below its target.

    Units: ``rate`` is of value per metric.   Source: projected dual ascent, as in F-GRPO's constraints.
    """
    return min(max(value + rate * (target - measured), low), high)


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

    value' = value (1 + rate clip(measured / target - 1, -clip, clip)), held within [low, high]

    Units: ``measured`` and ``target`` in nats; ``rate`` is the step's share of the horizon.
    Source: Ziegler et al., arXiv:1909.08593, sec. 2.2, and TRL's AdaptiveKLController, where rate = samples / horizon.
    """
    error = min(max(measured / target - 1, -clip), clip)
    return min(max(value * (1 + rate * error), low), high)


def against_trend(value: float, measured: Sequence[float], *, low: float = 0.0, high: float = math.inf) -> float:
    """A number that grows by as much as a metric falls, and shrinks as it rises.

    value' = value mean(measured before the last) / last measured, held within [low, high]; the same where either is 0

    Shapes: two measurements or more.   Units: of value.
    Source: G2RPO-A, arXiv:2508.13023, and its code (T-Lab-CUHKSZ/G2RPO-A, ``g2rpoa_trainer.py``,
        _compute_new_guidance_length), every third step.
    """
    *before, last = measured
    return min(max(value * fmean(before) / last, low), high) if fmean(before) > 0 and last > 0 else value


def moving_mean(value: float, measured: float, *, rate: float) -> float:
    """A moving mean of a metric.

    value' = (1 - rate) value + rate measured

    Units: those of the metric; rate is the weight of the newest.   Source: the baselines of VERL, arXiv:2509.23808.
    """
    return (1 - rate) * value + rate * measured


def first_measured(value: float, measured: float) -> float:
    """What a metric was at the first step that has it, ever after.

    value' = measured while value is 0, else value

    Units: those of the metric.   Source: the anchor of SIREN, arXiv:2509.25133.
    """
    return measured if value == 0 else value


def either(value: float, measured: float, *, at: float, below: float, above: float) -> float:
    """One number while a metric is below a bound, and another from there on.

    value' = below if measured < at else above

    Units: ``below`` and ``above`` are of value, ``at`` of the metric.
    Source: AEPO, arXiv:2510.08141, and its code (597358816/AEPO, ``ray_trainer.py``): a temperature by the entropy.
    """
    del value
    return below if measured < at else above


CONTROLLERS: Registry[Callable[..., float]] = Registry(
    {
        "dual_ascent": dual_ascent,
        "adaptive_kl": adaptive_kl,
        "against_trend": against_trend,
        "first_measured": first_measured,
        "either": either,
        "moving_mean": moving_mean,
    }
)
"""Controllers by the name that ``controllers`` uses; beside its numbers each is given the ``metric`` it follows, and
``every`` how many steps it moves."""

SERIES = frozenset({"against_trend"})
"""Those that are given a metric step by step, so that they need an ``every`` of 2 or more."""

METRICS: Mapping[str, str] = MappingProxyType({"adaptive_kl": "policy/kl_mean"})
"""What a controller follows where the configuration names no metric."""
