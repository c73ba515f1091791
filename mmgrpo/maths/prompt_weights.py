"""Numbers for the choice of prompts: their weights, their probabilities of being skipped, and the quotas of sources.

Axes: N prompts of a source, S sources.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

ANSWER_WEIGHTS: Registry[Callable[..., Tensor]] = Registry(arguments=("rate_N",))
"""The weight of a supervised answer by the success rate of its group, by the name that ``weight_by_success`` of
``objective.auxiliary`` uses."""


def variance(rate_N: Tensor) -> Tensor:
    """The variance of a reward of 0 or 1: prompts solved half of the time train most.

    w = p (1 - p)

    Shapes: (N,) -> (N,).   Units: success rate in [0, 1] -> weight.   Source: MMR1, arXiv:2509.21268, VPS.
    """
    return rate_N * (1 - rate_N)


def deviation(rate_N: Tensor) -> Tensor:
    """The spread of a reward of 0 or 1.

    w = sqrt(p (1 - p))

    Shapes: (N,) -> (N,).   Units: success rate in [0, 1] -> weight.   Source: SPO, arXiv:2509.13232.
    """
    return variance(rate_N).sqrt()


@ANSWER_WEIGHTS.register
def failure(rate_N: Tensor) -> Tensor:
    """How often the prompt fails.

    w = 1 - p

    Shapes: (N,) -> (N,).   Units: success rate in [0, 1] -> weight.
    """
    return 1 - rate_N


FORMULAS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"variance": variance, "deviation": deviation, "failure": failure}
)
"""The weight of a prompt by its success rate, by the name that ``prompts.sampler: {name: weighted}`` uses."""


@ANSWER_WEIGHTS.register
def below(rate_N: Tensor, *, rate: float) -> Tensor:
    """1 or 0: an answer is supervised if its group fails.

    w = 1 where p < rate, else 0

    Shapes: (N,) -> (N,).   Units: success rate in [0, 1] -> weight.
    Source: the switch of the expert's loss of AHPO (MM-HELIX), arXiv:2510.08540, xi.
    """
    return (rate_N < rate).to(rate_N)


def keep_probability(p: float, streak_N: Tensor, *, floor: float) -> Tensor:
    """The probability that a prompt is sampled after a streak of visits with equal rewards.

    keep = max(p ** z, floor), z = the streak; it is skipped with 1 - keep

    Shapes: (N,) -> (N,).   Source: GRESO, arXiv:2506.02177, and its code, with floor 0.01.
    """
    return (p ** streak_N.double()).clamp(min=floor)


def adapted_probability(p: float, share: float, *, target: float, pace: float, low: float, high: float) -> float:
    """The probability of the next step: it falls while too many prompts have equal rewards.

    p' = p - pace where share >= target, else p + pace, clamped to [low, high]

    Units: ``share`` and ``target`` are shares of the step's prompts.   Source: GRESO, arXiv:2506.02177, and its code.
    """
    return min(max(p - pace if share >= target else p + pace, low), high)


def offered(step: int, size: int, num: int, *, falls: float, least: float) -> tuple[int, int, int]:
    """How many prompts a step looks at to take ``num``, its epoch, and how many of that epoch were looked at before.

    A step of epoch e takes the share max(1 - falls e, least) of those that it looks at.

    Units: prompts.   Source: DEPO, arXiv:2509.01321, and its code (txy77/DEPO, ``rollout_purning.py``).
    """
    epoch = 0
    while True:
        looked_at = min(math.ceil(num / max(1 - falls * epoch, least) - 1e-9), size)
        steps = -(-size // looked_at)
        if step < steps:
            return looked_at, epoch, step * looked_at
        step, epoch = step - steps, epoch + 1


def apportioned(weight_S: Sequence[float], num: int, *, seed: int) -> list[int]:
    """The number of ``num`` prompts per source: its exact share if that is an integer, else rounded down or up.

    quota_i = num w_i / sum w; n_i = floor(C_i + u) - floor(C_(i-1) + u), C_i = quota_1 + ... + quota_i, u uniform

    Each n_i is within 1 of its quota, they add up to ``num``, and over seeds each is its quota on average.

    Units: weights of any scale -> counts.   Raises: ConfigError if a weight is negative or all are 0.
    Source: systematic sampling; of largest remainders that a fixed choice would always give to the same source.
    """
    if min(weight_S) < 0 or not sum(weight_S) > 0:
        raise ConfigError(f"weights of sources must be at least 0 and not all 0, got {list(weight_S)}")
    u = random.Random(derive_seed(seed)).random()
    ends, so_far = [0], 0.0
    for weight in weight_S:
        so_far += weight
        quota = round(num * so_far / sum(weight_S), 9)  # an integer share must not fall below its number by rounding
        ends.append(num if quota >= num else math.floor(quota + u))
    return [end - begin for begin, end in pairwise(ends)]


def opened_share(step: int, *, start: float, steps: int) -> float:
    """The share of prompts, easy ones first, that a curriculum samples from.

    share = start + (1 - start) min(step / steps, 1)

    Units: steps, counted from 0 -> share in [0, 1].
    """
    return start + (1 - start) * min(step / steps, 1.0)
