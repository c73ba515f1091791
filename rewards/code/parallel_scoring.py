"""Parallel scoring of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mmgrpo.types import Sample

R = TypeVar("R")
T = TypeVar("T")


def score_in_parallel(
    concurrency: int, score: Callable[[str, R], T], samples: Sequence[Sample], references: Sequence[R | None]
) -> Sequence[T | None]:
    """``score(text, reference)`` of samples, in parallel; None without a reference.

    Args:
        concurrency: number of threads.
        score: called on each sample.
        samples: the samples to score.
        references: a reference for each sample, or None.

    Returns:
        One per sample, in order.
    """

    def of(sample: Sample, reference: R | None) -> T | None:
        return None if reference is None else score(sample.text or "", reference)

    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        return list(pool.map(of, samples, references))
