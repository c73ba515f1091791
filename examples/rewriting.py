"""Indirect requests for digits, and their rewritings into captions for an image model."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.examples.digits import DIGIT_NAMES, caption

from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt, Sample

FORMS = (("{}", 0), ("the digit after {}", 1), ("the digit before {}", -1))
"""Forms of a request, with the offset from the named digit to the requested one; zero follows nine."""
COPIES = 20
"""Examples of each request in the warm-up."""


def requests() -> list[Prompt]:
    """The 30 requests, such as ``the digit after six``, with columns ``digit`` and ``answer``, the right caption."""
    return [_request(form, named, step) for form, step in FORMS for named in range(10)]


def literal_rewritings(fraction: float = 0.6) -> list[Example]:
    """Captions for the requests; for a fraction of those with "after" or "before" the named digit is used instead of
    the requested one.

    Raises: DataError if fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise DataError(f"fraction of literal rewritings must be in [0, 1], got {fraction}")
    literal = round(fraction * COPIES)
    return [
        Example(
            prompt=_request(form, named, step),
            text=caption(named if step and copy < literal else (named + step) % 10),
        )
        for copy in range(COPIES)
        for form, step in FORMS
        for named in range(10)
    ]


def is_caption(samples: Sequence[Sample]) -> list[float]:
    """Reward: 1 for a text that is the caption of some digit, else 0."""
    captions = {caption(digit) for digit in range(10)}
    return [float((sample.text or "").strip() in captions) for sample in samples]


def _request(form: str, named: int, step: int) -> Prompt:
    digit = (named + step) % 10
    return Prompt(form.format(DIGIT_NAMES[named]), columns={"digit": digit, "answer": caption(digit)})
