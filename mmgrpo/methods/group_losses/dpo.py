"""DPO (direct preference optimization), arXiv:2305.18290.

A pair of a row is a group of two samples, and a reward is the label of the pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.data.stored_answers import stored_answer
from mmgrpo.types import Sample


def chosen(samples: Sequence[Sample]) -> list[float | None]:
    """Reward: 1 for the answer in the column ``chosen`` of the row, 0 for that in ``rejected``; None for other texts.

    Args:
        samples: stored answers of data rows.

    Returns:
        list[float | None]: a number per sample, 0 or 1.
    """
    return [_is_chosen(sample) for sample in samples]


def _is_chosen(sample: Sample) -> float | None:
    if sample.text is None:
        return None
    texts = {stored_answer(sample.prompt, column): value for column, value in (("rejected", 0.0), ("chosen", 1.0))}
    return texts.get(sample.text)
