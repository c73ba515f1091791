"""Parses the return value of a reward per sample: a number, None, or a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch

from mmgrpo.errors import RewardError
from mmgrpo.types import Scope, Score

MAX_LISTED_SCOPES = 64  # scopes that an explanation lists


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a reward for one sample.

    Attributes:
        value: the score; None where the reward does not apply or failed.
        failed: whether it failed: it raised, timed out, or returned NaN or infinity.
        explanation: explanation of the score, if the reward gives one.
        scopes: scores of parts, with None for non-finite numbers; None without parts.
    """

    value: float | None
    failed: bool = False
    explanation: Mapping[str, Any] | None = None
    scopes: tuple[Scope, ...] | None = None


FAILED = Result(None, failed=True)


def read_results(returned: Any, expected: int) -> list[Result]:
    """The results, one per sample; numbers that are not finite in float32 are failures, also those of parts.

    If the score of a sample failed, its parts are discarded; a failed part has no number.

    Raises: RewardError for the wrong number of values, or values other than numbers, scores and None.
    """
    values = to_list(returned, expected)
    numbers = [math.nan if value is None else _as_number(value) for value in values]
    value_B = torch.tensor(numbers, dtype=torch.float32)
    finite_B = value_B.isfinite().tolist()
    return [_result(value, number, ok) for value, number, ok in zip(values, value_B.tolist(), finite_B, strict=True)]


def to_list(returned: Any, expected: int) -> list[Any]:
    """The returned values as a list. Raises RewardError unless there are as many as expected."""
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
    """The explanations, one entry per sample, with the first scopes under ``scopes``; None if no sample has one."""
    explanations = [_explained(result) for result in results]
    return explanations if any(explanation is not None for explanation in explanations) else None


def scopes_of(results: Sequence[Result]) -> Sequence[Sequence[Scope] | None] | None:
    """The scopes, one entry per sample; None if no sample has any."""
    scopes = [result.scopes for result in results]
    return scopes if any(sample_scopes is not None for sample_scopes in scopes) else None


def _explained(result: Result) -> Mapping[str, Any] | None:
    if not result.scopes:
        return result.explanation
    listed_scopes = [[scope.start, scope.end, scope.value] for scope in result.scopes[:MAX_LISTED_SCOPES]]
    return {"scopes": listed_scopes, **(result.explanation or {})}


def _result(value: Any, number: float, finite: bool) -> Result:
    explanation = dict(value.explanation) or None if isinstance(value, Score) else None
    if not finite or not isinstance(value, Score) or value.scopes is None:
        return Result(number if finite else None, failed=value is not None and not finite, explanation=explanation)
    scopes = tuple(replace(scope, value=_finite(scope.value)) for scope in value.scopes)
    had_value, has_value = (
        [scope.value is not None for scope in sample_scopes] for sample_scopes in (value.scopes, scopes)
    )
    return Result(number, failed=had_value != has_value, explanation=explanation, scopes=scopes)


def _finite(value: Any) -> float | None:
    """The number of a part in float32; None if missing or not finite."""
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
    if isinstance(value, FunctionType | MethodType):
        return "a function: name the function that returns the scores, score = FACTORY() in your module"
    return "None; is a return missing?" if value is None else f"{value!r:.60} of type {type(value).__name__}"
