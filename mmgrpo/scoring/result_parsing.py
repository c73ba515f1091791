"""What a reward returned, read value by value: a number, nothing, or a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mmgrpo.errors import RewardError
from mmgrpo.types import Scope, Score

MAX_SHOWN = 64  # parts that an explanation lists


@dataclass(frozen=True, slots=True)
class Result:
    """What a reward said of one sample.

    Attributes:
        value: the score; None where the reward does not apply or failed.
        failed: whether it failed: it raised, took too long, or gave NaN or infinity.
        explanation: what the score rests on, where the reward says.
        scopes: what it said of parts, None in place of numbers that are not finite, where it said anything.
    """

    value: float | None
    failed: bool = False
    explanation: Mapping[str, Any] | None = None
    scopes: tuple[Scope, ...] | None = None


FAILED = Result(None, failed=True)


def read_results(returned: Any, expected: int) -> list[Result]:
    """The returned values, one per sample; numbers that are not finite in float32 are failures, those of parts too.

    Of a sample whose own number failed nothing is kept of its parts; a part that failed is a part without a number.

    Raises: RewardError for the wrong number of values, or something other than numbers, scores and None.
    """
    values = listed(returned, expected)
    numbers = [math.nan if value is None else _as_number(value) for value in values]
    value_B = torch.tensor(numbers, dtype=torch.float32)
    finite_B = value_B.isfinite().tolist()
    return [_result(value, number, ok) for value, number, ok in zip(values, value_B.tolist(), finite_B, strict=True)]


def listed(returned: Any, expected: int) -> list[Any]:
    """The returned values as a list. Raises RewardError unless they are as many as expected."""
    if returned is None or isinstance(returned, str | bytes | dict | Score):
        raise RewardError(f"expected a sequence of {expected} numbers or None, got {_describe(returned)}")
    try:
        values = list(returned)
    except TypeError as error:
        raise RewardError(f"expected a sequence of {expected} numbers or None, got {_describe(returned)}") from error
    if len(values) != expected:
        raise RewardError(f"expected {expected} values, one per sample in order, got {len(values)}")
    return values


def explanations_of(results: Sequence[Result]) -> list[Mapping[str, Any] | None] | None:
    """The explanations, one entry per sample, with the first parts under ``scopes``; None if there is none at all."""
    found = [_explained(result) for result in results]
    return found if any(one is not None for one in found) else None


def scopes_of(results: Sequence[Result]) -> Sequence[Sequence[Scope] | None] | None:
    """What was said of parts, one entry per sample; None if nothing was said of any."""
    found = [result.scopes for result in results]
    return found if any(one is not None for one in found) else None


def _explained(result: Result) -> Mapping[str, Any] | None:
    if not result.scopes:
        return result.explanation
    listed = [[scope.start, scope.end, scope.value] for scope in result.scopes[:MAX_SHOWN]]
    return {"scopes": listed, **(result.explanation or {})}


def _result(value: Any, number: float, finite: bool) -> Result:
    explanation = dict(value.explanation) or None if isinstance(value, Score) else None
    if not finite or not isinstance(value, Score) or value.scopes is None:
        return Result(number if finite else None, failed=value is not None and not finite, explanation=explanation)
    scopes = tuple(replace(scope, value=_finite(scope.value)) for scope in value.scopes)
    given, kept = ([scope.value is not None for scope in some] for some in (value.scopes, scopes))
    return Result(number, failed=given != kept, explanation=explanation, scopes=scopes)


def _finite(value: Any) -> float | None:
    """A part's number in float32; None if there is none or it is not finite."""
    number = math.nan if value is None else float(torch.tensor(_as_number(value), dtype=torch.float32))
    return number if math.isfinite(number) else None


def _as_number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise RewardError(f"every value must be a number or None, got {_describe(value)}")
    if isinstance(value, Score):
        return _as_number(value.value)
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RewardError(f"every value must be a number or None, got {_describe(value)}") from error


def _describe(value: Any) -> str:
    return "None; is a return missing?" if value is None else f"{value!r:.60} of type {type(value).__name__}"
