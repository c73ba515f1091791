"""How many places a reveal shows, and which maskings a finished answer is read under.

Axes: L places of an answer, K maskings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class UnmaskingStep:
    """A step of the sampler.

    Attributes:
        start: first place that it may show.
        stop: behind the last one.
        count: places that it shows.
        noise: what multiplies the Gumbel noise of its choice.
    """

    start: int
    stop: int
    count: int
    noise: float


def even_counts(length: int, num_steps: int) -> list[int]:
    """As many places each; the first steps show one more where it does not come out even.

    Source: LLaDA, arXiv:2502.09992, and its code (ML-GSAI/LLaDA, ``generate.py``, get_num_transfer_tokens).
    """
    return [length // num_steps + (step < length % num_steps) for step in range(num_steps)]


def linear_counts(length: int, num_steps: int) -> list[int]:
    """A share of 1 - r stays hidden, r the share of the steps taken, as ``AmusedScheduler`` rounds it."""
    return _counts(length, num_steps, lambda ratio: 1 - ratio)


def cosine_counts(length: int, num_steps: int) -> list[int]:
    """A share of cos(r pi / 2) stays hidden, r the share of the steps taken, as ``AmusedScheduler`` rounds it.

    Source: MaskGIT, arXiv:2202.04200, sec. 3.3.
    """
    return _counts(length, num_steps, lambda ratio: torch.cos(ratio * pi / 2))


def _counts(length: int, num_steps: int, share_of: Callable[[Tensor], Tensor]) -> list[int]:
    """Rounded down, one place shown at least, and one left until the last step: in float32, where pi / 3 is below."""
    hidden, counts = length, []
    for step in range(num_steps):
        share = share_of(torch.tensor(step + 1) / num_steps)
        left = 0 if step == num_steps - 1 else max(1, min(hidden - 1, int((length * share).floor())))
        counts.append(hidden - left)
        hidden = left
    return counts


COUNTS: Mapping[str, Callable[[int, int], list[int]]] = MappingProxyType(
    {"even": even_counts, "linear": linear_counts, "cosine": cosine_counts}
)
"""Places that each step shows, by the name of the schedule: (places, steps) -> a number a step."""


def unmasking_steps(
    length: int, *, num_steps: int, block_length: int | None, schedule: str, noise: tuple[float, float]
) -> list[UnmaskingStep]:
    """The sampler's steps, block after block.

    Args:
        length: places of an answer.
        num_steps: over all blocks.
        block_length: places of a block, which divides the length; None: one block.
        schedule: a name of ``COUNTS``.
        noise: what multiplies the noise of the first step and of the last, linear between.

    Returns:
        ``num_steps`` reveals that show every place once.

    Raises:
        ConfigError: the steps are not so many for each block, or more than its places.
    """
    block = block_length or length
    steps, rest = divmod(num_steps, length // block)
    if rest or not 1 <= steps <= block:
        raise ConfigError(
            f"policy.num_steps is {num_steps}: {length // block} blocks of {block} places take as many steps each, "
            f"from 1 to {block}"
        )
    noises = torch.linspace(*noise, num_steps).tolist()
    counts = [(start, count) for start in range(0, length, block) for count in COUNTS[schedule](block, steps)]
    return [
        UnmaskingStep(start, start + block, count, each) for (start, count), each in zip(counts, noises, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Masking:
    """A way to hide an answer again.

    Attributes:
        probability_L: how likely each place is to be hidden.
        weight: of the log-probability of what is hidden.
    """

    probability_L: Tensor
    weight: float = 1.0


def whole_maskings(length: int, num: int) -> list[Masking]:
    """Every place hidden.

    Source: d1, arXiv:2504.12216, sec. 3.1.
    """
    return [Masking(torch.ones(length)) for _ in range(num)]


def share_maskings(length: int, num: int, *, low: float, high: float, later: bool) -> list[Masking]:
    """Masking k of K hides a share low + (high - low) (k + 1) / K of the places, k from 0.

    Where later places are likelier to be hidden, place i is shown with probability min(1, (1 - share) c_i / mean c), c
    falling linearly from 1 to 0.

    Source: MaskGRPO, arXiv:2510.02880, and its code (martian422/MaskGRPO, ``mask_grpo_trainer.py``: remask_t2t,
    remask_ar). Deviation: a share of 1 hides every place, which the code stops at 0.999.
    """
    found = []
    for k in range(num):
        shown = 1 - (low + (high - low) * (k + 1) / num)
        curve_L = torch.linspace(1, 0, length) if later and length > 1 else torch.ones(length)
        found.append(Masking(1 - (shown * curve_L / curve_L.mean()).clamp(max=1.0)))
    return found


def bound_maskings(length: int, num: int) -> list[Masking]:
    """Levels t_k of a Gauss-Legendre quadrature of [0, 1]: places hidden with probability t_k, of weight w_k / t_k.

    sum_k w_k / t_k E[sum over the hidden of log p] is the bound E_t E[1 / t sum log p] <= log p(answer | prompt),
    exact for what is a polynomial of t of degree 2 K - 1.

    Source: GDPO, arXiv:2510.08554, sec. 3 (semi-deterministic Monte Carlo, one masking a level).
    """
    node_K, weight_K = np.polynomial.legendre.leggauss(num)
    levels = [((node + 1) / 2, weight / 2) for node, weight in zip(node_K, weight_K, strict=True)]
    return [Masking(torch.full((length,), level), weight / level) for level, weight in levels]
