"""Numbers of positions per unmasking step, and the maskings of finished answers.

Axes: L positions of an answer, K maskings.
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
        start: first position that it may unmask.
        stop: end of these positions, exclusive.
        count: positions that it unmasks.
        noise: factor of the Gumbel noise of its selection.
    """

    start: int
    stop: int
    count: int
    noise: float


def even_counts(length: int, num_steps: int) -> list[int]:
    """Equal numbers of positions; the first steps unmask one more if L is not divisible.

    Source: LLaDA, arXiv:2502.09992, and its code (ML-GSAI/LLaDA, ``generate.py``, get_num_transfer_tokens).
    """
    return [length // num_steps + (step < length % num_steps) for step in range(num_steps)]


def linear_counts(length: int, num_steps: int) -> list[int]:
    """A fraction 1 - r stays masked, r the fraction of steps taken, rounded like in ``AmusedScheduler``."""
    return _counts(length, num_steps, lambda ratio: 1 - ratio)


def cosine_counts(length: int, num_steps: int) -> list[int]:
    """A fraction cos(r pi / 2) stays masked, r the fraction of steps taken, rounded like in ``AmusedScheduler``.

    Source: MaskGIT, arXiv:2202.04200, sec. 3.3.
    """
    return _counts(length, num_steps, lambda ratio: torch.cos(ratio * pi / 2))


def _counts(length: int, num_steps: int, masked_fraction: Callable[[Tensor], Tensor]) -> list[int]:
    """Rounded down in float32 (where pi / 3 is lower), at least one position per step, including the last."""
    masked, counts = length, []
    for step in range(num_steps):
        fraction = masked_fraction(torch.tensor(step + 1) / num_steps)
        remaining = 0 if step == num_steps - 1 else max(1, min(masked - 1, int((length * fraction).floor())))
        counts.append(masked - remaining)
        masked = remaining
    return counts


COUNTS: Mapping[str, Callable[[int, int], list[int]]] = MappingProxyType(
    {"even": even_counts, "linear": linear_counts, "cosine": cosine_counts}
)
"""Positions per step by schedule name: (positions, steps) -> one number per step."""


def unmasking_steps(
    length: int, *, num_steps: int, block_length: int | None, schedule: str, noise: tuple[float, float]
) -> list[UnmaskingStep]:
    """The sampler's steps, block by block.

    Args:
        length: positions of an answer.
        num_steps: of all blocks.
        block_length: positions of a block, a divisor of the length; None: one block.
        schedule: a name of ``COUNTS``.
        noise: noise factor of the first step and of the last, linear in between.

    Returns:
        ``num_steps`` steps that unmask every position once.

    Raises:
        ConfigError: the number of steps per block is not an integer from 1 to the block's positions.
    """
    block = block_length or length
    steps, rest = divmod(num_steps, length // block)
    if rest or not 1 <= steps <= block:
        raise ConfigError(
            f"policy.num_steps is {num_steps}; {length // block} blocks of {block} positions need the same number of "
            f"steps each, from 1 to {block}"
        )
    noises = torch.linspace(*noise, num_steps).tolist()
    counts = [(start, count) for start in range(0, length, block) for count in COUNTS[schedule](block, steps)]
    return [
        UnmaskingStep(start, start + block, count, step_noise)
        for (start, count), step_noise in zip(counts, noises, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Masking:
    """A distribution of masks of a finished answer.

    Attributes:
        probability_L: probability of each position to be masked.
        weight: of the log-probability of the masked tokens.
    """

    probability_L: Tensor
    weight: float = 1.0


def equal_maskings(length: int, num: int) -> list[Masking]:
    """Every position masked.

    Source: d1, arXiv:2504.12216, sec. 3.1.
    """
    return [Masking(torch.ones(length)) for _ in range(num)]


def share_maskings(length: int, num: int, *, low: float, high: float, later: bool) -> list[Masking]:
    """Masking k of K masks a fraction low + (high - low) (k + 1) / K of the positions, k from 0.

    If ``later``, position i stays unmasked with probability min(1, (1 - fraction) c_i / mean c), c linear from 1 to 0.

    Source: MaskGRPO, arXiv:2510.02880, and its code (martian422/MaskGRPO, ``mask_grpo_trainer.py``: remask_t2t,
    remask_ar). Deviation: a fraction of 1 masks every position, which the code limits to 0.999.
    """
    maskings = []
    for k in range(num):
        unmasked = 1 - (low + (high - low) * (k + 1) / num)
        curve_L = torch.linspace(1, 0, length) if later and length > 1 else torch.ones(length)
        maskings.append(Masking(1 - (unmasked * curve_L / curve_L.mean()).clamp(max=1.0)))
    return maskings


def bound_maskings(length: int, num: int) -> list[Masking]:
    """Levels t_k of a Gauss-Legendre quadrature of [0, 1]: masking probability t_k, weight w_k / t_k.

    sum_k w_k / t_k E[sum over masked positions of log p] is the bound E_t E[1 / t sum log p] <= log p(answer | prompt),
    exact for polynomials of t of degree 2 K - 1.

    Source: GDPO, arXiv:2510.08554, sec. 3 (semi-deterministic Monte Carlo, one masking per level).
    """
    node_K, weight_K = np.polynomial.legendre.leggauss(num)
    levels = [((node + 1) / 2, weight / 2) for node, weight in zip(node_K, weight_K, strict=True)]
    return [Masking(torch.full((length,), level), weight / level) for level, weight in levels]
