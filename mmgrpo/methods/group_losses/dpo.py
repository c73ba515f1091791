"""DPO (direct preference optimization), arXiv:2305.18290, and Diffusion-DPO, arXiv:2311.12908.

A pair of a row is a group of two samples, and a reward is the label of the pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.data.stored_answers import answer_of
from mmgrpo.types import Sample


def chosen(samples: Sequence[Sample]) -> list[float | None]:
    """Reward: 1 for the answer in the column ``chosen`` of the row, 0 for that in ``rejected``; None for other samples.

    Args:
        samples: stored answers of data rows, texts or images.

    Returns:
        list[float | None]: a number per sample, 0 or 1.
    """
    return [_is_chosen(sample) for sample in samples]


def _is_chosen(sample: Sample) -> float | None:
    for column, value in (("chosen", 1.0), ("rejected", 0.0)):
        if column not in sample.prompt.columns:
            continue
        answer = answer_of(sample.prompt, column, writes=sample.text is not None)
        if (answer.text, answer.image, answer.video) == (sample.text, sample.image, sample.video):
            return value
    return None
