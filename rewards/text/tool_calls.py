"""Reward for calls of tools that an answer states, held against the right ones without running any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..parsing.explanations import compared, rounded
from ..parsing.extraction import Extract, extract_answer, json_values, require_extract
from ..parsing.reference_values import find_reference_error, score_against_reference

MAX_CALLS = 50
MAX_DEPTH = 8

_PARAMETERS = ("parameters", "arguments", "args")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool's name with the values of its parameters."""

    name: str
    parameters: Mapping[str, Any]


@final
class ToolCalls:
    """Reward: how much of the right tool calls the answer states: their names, parameters and values.

    (n + sum over the right calls of (k + v)) / (1 + sum over the right calls of (1 + p)), 1 where the two are equal. n
    is the likeness of the two collections of tool names, what they share over what either has; k the same of the
    names of a call's p parameters, v the number of its values that are equal. Each right call is compared with the
    stated one of that tool, not used yet, that has most in common with it.

    Read are JSON objects ``{"name": .., "parameters": {..}}`` (or ``arguments``), one after the other or in a list. The
    reference, in ``column``, is the same: objects, a list of them, or a text.

    Example: ``{name: tool_calls, extract: {tag: tool_call}}``.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: ToolRL, arXiv:2504.13958, verl/utils/reward_score/rlla.py, which lays it between -3 and 3.
    Traps: values must be equal, 5 is not "5". A row without a call is not scored, so nothing here keeps a policy
    from calling needlessly; ``format`` may. More than 50 calls score 0.
    """

    def __init__(self, column: str = "answer", extract: Extract = "none") -> None:
        self.column = column
        self._extract: Extract = require_extract("ToolCalls.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("tool_calls", samples, self.column, _reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _reference, "one or more tool calls")

    def _score(self, text: str, reference: list[ToolCall]) -> Score:
        stated = calls_in(extract_answer(text, self._extract) or "")
        explanation = compared(_named(stated), _named(reference) or "")
        if len(stated) > MAX_CALLS:
            return Score(0.0, explanation | {"reason": f"{len(stated)} calls, more than {MAX_CALLS}"})
        if not stated:
            return Score(0.0, explanation | {"reason": "no call"})
        names = likeness([call.name for call in stated], [call.name for call in reference])
        matched = _matched(stated, reference)
        share = (names + matched) / (1 + sum(1 + len(call.parameters) for call in reference))
        return Score(share, explanation | {"parts": rounded({"names": names, "matched": matched})})


def calls_in(source: Any) -> list[ToolCall]:
    """The calls in a text, or in the value of a data row, in order."""
    return list(_calls(json_values(source) if isinstance(source, str) else source, 0))


def likeness(stated: Iterable[str], reference: Iterable[str]) -> float:
    """What two collections share over what either has, each as often as it stands in it; 1 if both are empty."""
    stated_counts, reference_counts = Counter(list(stated)), Counter(list(reference))
    return (
        (stated_counts & reference_counts).total() / (stated_counts | reference_counts).total()
        if stated_counts or reference_counts
        else 1.0
    )


def _calls(value: Any, depth: int) -> Iterable[ToolCall]:
    if isinstance(value, Mapping):
        name = value.get("name")
        parameters = next((value[key] for key in _PARAMETERS if isinstance(value.get(key), Mapping)), {})
        if isinstance(name, str):
            yield ToolCall(name, parameters)
    elif isinstance(value, list | tuple) and depth < MAX_DEPTH:
        for inner in value:
            yield from _calls(inner, depth + 1)


def _matched(stated: Sequence[ToolCall], reference: Sequence[ToolCall]) -> float:
    """What the right calls have in common with the stated ones, added up."""
    left, total = list(stated), 0.0
    for wanted in reference:
        common = [(_common(call, wanted), at) for at, call in enumerate(left) if call.name == wanted.name]
        best, at = max(common, key=lambda pair: pair[0], default=(0.0, -1))
        if best > 0:
            total += best
            del left[at]
    return total


def _common(stated: ToolCall, wanted: ToolCall) -> float:
    values = sum(_equal(stated.parameters[key], value) for key, value in wanted.parameters.items()
                 if key in stated.parameters)  # fmt: skip
    return likeness(stated.parameters, wanted.parameters) + values


def _equal(first: Any, second: Any) -> bool:
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def _reference(value: Any) -> list[ToolCall] | None:
    calls = calls_in(value)
    return calls if 0 < len(calls) <= MAX_CALLS else None


def _named(calls: Sequence[ToolCall]) -> str | None:
    return ", ".join(f"{call.name}({', '.join(map(str, call.parameters))})" for call in calls) or None
