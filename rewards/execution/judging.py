"""Several sandboxes at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mmgrpo.types import Sample, Score

R = TypeVar("R")


def at_once(
    concurrency: int, score: Callable[[str, R], Score | None], samples: Sequence[Sample], known: Sequence[R | None]
) -> list[float | Score | None]:
    """``score(text, reference)`` of several samples at a time; None where there is no reference."""

    def of(sample: Sample, reference: R | None) -> Score | None:
        return None if reference is None else score(sample.text or "", reference)

    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        return list(pool.map(of, samples, known))
