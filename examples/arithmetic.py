"""Sums of two two-digit numbers as text: the data of the smallest language job, with exact answers."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt

LOW, HIGH = 10, 100  # terms, the upper end excluded
SPLIT_SEED = 0


def sums() -> list[Prompt]:
    """80 % of the 8,100 sums, such as ``34+58=``, with the result as text in the column ``answer``."""
    return [_prompt(*terms) for terms in _pairs()[0]]


def held_out_sums() -> list[Prompt]:
    """The first 500 of the other sums, in random order, not used in warm-up and rollouts."""
    return [_prompt(*terms) for terms in _pairs()[1][:500]]


def careless_sums(fraction: float = 0.7, seed: int = 0) -> list[Example]:
    """The training sums, with deliberately wrong results for some: the carry of the units is omitted.

    ``round(fraction * N)`` examples omit the carry. This changes only the 45 % whose units add up to ten or more, so
    about ``0.45 * fraction`` of all results are wrong: 34+58=82. The column ``answer`` is the correct sum.

    Raises: DataError if fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise DataError(f"fraction of careless sums must be in [0, 1], got {fraction}")
    pairs = _pairs()[0]
    careless = set(Random(seed).sample(range(len(pairs)), round(fraction * len(pairs))))
    return [
        Example(prompt=_prompt(a, b), text=str(without_carry(a, b) if i in careless else a + b))
        for i, (a, b) in enumerate(pairs)
    ]


def without_carry(a: int, b: int) -> int:
    """The sum without the carry from the units to the tens: 34 + 58 gives 82."""
    return (a // 10 + b // 10) * 10 + (a + b) % 10


@lru_cache(maxsize=1)
def _pairs() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The training and held-out pairs of terms, 80 to 20, in a fixed random order."""
    pairs = [(a, b) for a in range(LOW, HIGH) for b in range(LOW, HIGH)]
    Random(SPLIT_SEED).shuffle(pairs)
    cut = len(pairs) * 4 // 5
    return pairs[:cut], pairs[cut:]


def _prompt(a: int, b: int) -> Prompt:
    return Prompt(f"{a}+{b}=", columns={"answer": str(a + b)})
