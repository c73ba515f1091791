"""Reward for tool calls, compared with reference calls without executing any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison, rounded
from ..parsing.extraction import Extract, extract_answer, json_values, require_extract
from ..parsing.reference_values import find_reference_error, score_against_reference

MAX_CALLS = 50
MAX_DEPTH = 8

_PARAMETERS = ("parameters", "arguments", "args")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool name with the values of its parameters."""

    name: str
    parameters: Mapping[str, Any]


@final
class ToolCalls:
    """Reward: agreement of the tool calls in the answer with the reference: names, parameters and values.

    (n + sum over reference calls of (k + v)) / (1 + sum over reference calls of (1 + p)), 1 if both are equal. n is the
    intersection over union of the multisets of tool names; k the same for the names of a call's p parameters, v the
    number of equal values. Each reference call is matched with the most similar unused call of the same tool.

    Parsed are JSON objects ``{"name": .., "parameters": {..}}`` (or ``arguments``), consecutive or in a list. The
    reference, in ``column``, has the same form: an object, a list, or a text.

    Example: ``{name: tool_calls, extract: {tag: tool_call}}``.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: ToolRL, arXiv:2504.13958, verl/utils/reward_score/rlla.py, which scales it to -3 to 3.
    Traps: values must be equal, 5 is not "5". A row without a reference call is not scored, so unnecessary calls are
    not penalized; ``format`` can penalize them. More than 50 calls score 0.
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
        stated = parse_calls(extract_answer(text, self._extract) or "")
        explanation = comparison(_named(stated), _named(reference) or "")
        if len(stated) > MAX_CALLS:
            return Score(0.0, explanation | {"reason": f"{len(stated)} calls, more than {MAX_CALLS}"})
        if not stated:
            return Score(0.0, explanation | {"reason": "no call"})
        names = likeness([call.name for call in stated], [call.name for call in reference])
        matched = _matched(stated, reference)
        share = (names + matched) / (1 + sum(1 + len(call.parameters) for call in reference))
        return Score(share, explanation | {"parts": rounded({"names": names, "matched": matched})})


def parse_calls(source: Any) -> list[ToolCall]:
    """Parse the calls in a text, or in the value of a data row, in order."""
    return list(_calls(json_values(source) if isinstance(source, str) else source, 0))


def likeness(stated: Iterable[str], reference: Iterable[str]) -> float:
    """Intersection over union of two multisets; 1 if both are empty."""
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
    """Summed similarity of the reference calls with their matched calls."""
    left, total = list(stated), 0.0
    for expected in reference:
        common = [(_common(call, expected), at) for at, call in enumerate(left) if call.name == expected.name]
        best, at = max(common, key=lambda pair: pair[0], default=(0.0, -1))
        if best > 0:
            total += best
            del left[at]
    return total


def _common(stated: ToolCall, expected: ToolCall) -> float:
    values = sum(_equal(stated.parameters[key], value) for key, value in expected.parameters.items()
                 if key in stated.parameters)  # fmt: skip
    return likeness(stated.parameters, expected.parameters) + values


def _equal(first: Any, second: Any) -> bool:
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def _reference(value: Any) -> list[ToolCall] | None:
    calls = parse_calls(value)
    return calls if 0 < len(calls) <= MAX_CALLS else None


def _named(calls: Sequence[ToolCall]) -> str | None:
    return ", ".join(f"{call.name}({', '.join(map(str, call.parameters))})" for call in calls) or None
