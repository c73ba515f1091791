"""Reads reference answers from a column of the data row; None if a row has no reference that the reward can parse."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from mmgrpo.types import Sample, Score

from .extraction import extract_answer
from .scalars import plain_value

logger = logging.getLogger(__name__)

R = TypeVar("R")

_warned: set[tuple[str, str]] = set()  # (reward, column); one warning each per process


def read_references(
    owner: str, samples: Sequence[Sample], column: str, read: Callable[[Any], R | None]
) -> list[R | None]:
    """Read the references of samples from a column.

    Args:
        owner: name of the reward, for the warning about unreadable references.
        samples: the samples to score.
        column: name of the column.
        read: parses a reference from a value of built-in type (see ``plain_value``); None if the value is not a valid
            reference.

    Returns:
        One entry per sample; None without text, without the column, or if ``read`` returns None.
    """
    values = [None if s.text is None else plain_value(s.prompt.columns.get(column)) for s in samples]
    parsed = [None if value is None else read(_untagged(value)) for value in values]
    unreadable = [
        value for value, reference in zip(values, parsed, strict=True) if value is not None and reference is None
    ]
    if unreadable and (owner, column) not in _warned:
        _warned.add((owner, column))
        logger.warning(
            "%s cannot read %d of %d references in column '%s', such as %.80r; it does not score those samples (None)",
            owner, len(unreadable), len(samples), column, unreadable[0],
        )  # fmt: skip
    return parsed


def find_reference_error(value: Any, read: Callable[[Any], R | None], expected: str) -> str | None:
    """Why a value of a data row is not a valid reference, "it is not WANTED"; None if it is valid."""
    return None if read(_untagged(plain_value(value))) is not None else f"it is not {expected}"


def score_against_reference(
    owner: str,
    samples: Sequence[Sample],
    column: str,
    read: Callable[[Any], R | None],
    judge: Callable[[str, R], float | Score],
) -> list[float | Score | None]:
    """``judge(text, reference)`` of every sample; None for samples without a reference."""
    parsed = read_references(owner, samples, column, read)
    return [None if r is None else judge(s.text or "", r) for s, r in zip(samples, parsed, strict=True)]


def accepted_texts(value: Any) -> list[str] | None:
    """The accepted answers of a reference: a text or number, or a list of them; None otherwise or if empty.

    For a float every usual notation is accepted: 7.0 as "7.0" and "7" (columns of integers with missing values are read
    as floats), 1e-05 as "1e-05" and "0.00001".
    """
    items = value if isinstance(value, list | tuple) else [value]
    if not items or not all(isinstance(item, str | int | float) for item in items):
        return None
    return [text for item in items for text in ([_untagged(item)] if isinstance(item, str) else number_notations(item))]


def number_notations(number: float) -> list[str]:
    """The usual notations of a number: Python's, and without exponent or trailing zero."""
    if isinstance(number, int) or not math.isfinite(number):
        return [str(number)]
    positional = np.format_float_positional(number, trim="-")
    return [str(number)] if positional == str(number) else [str(number), positional]


def shortest_notation(value: Any) -> str:
    """The shortest notation of a value of a data row: "7" for 7.0."""
    return number_notations(value)[-1] if isinstance(value, float) else str(value)


def _untagged(value: Any) -> Any:
    """Strip answer tags, which data sets for R1-style training put around the reference."""
    inner = extract_answer(value, "tag") if isinstance(value, str) else None
    return value if inner is None else inner
