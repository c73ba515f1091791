"""Rewards for the calls of tools that a conversation executed."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.samples import ToolResult
from mmgrpo.types import Sample, Score

from ..parsing.extraction import require_choice
from ..parsing.reference_values import find_reference_error, read_references
from .structure import PATTERN_LIMIT_S, compiled_pattern
from .tool_calls import ToolCall, parse_calls

Measure = Literal["share", "any"]


@final
class CallSuccess:
    """Reward: share of the calls of tools in a conversation that succeeded; 0 without any.

    A call failed if the environment marks its result so, or if the result matches the regular expression ``failure``,
    with ``.`` matching line ends; a search of more than one second is a failure of the reward (NaN). ``measure: any``
    is 1 if one call succeeded. ``tools`` limits it to the tools of these names. None for a sample without turns in an
    environment.

    Example: ``{name: call_success, failure: "^Error", measure: any}``.
    Range: 0 to 1.
    Source: designed for mmgrpo; rewards for executions that explore a database, as in ReEx-SQL (arXiv:2505.12768).
    Traps: calls that are useless but valid succeed: use a reward of the answer too.
    """

    deterministic = True

    def __init__(
        self, tools: Sequence[str] | None = None, failure: str | None = None, measure: Measure = "share"
    ) -> None:
        if isinstance(tools, str):
            raise ConfigError(f"CallSuccess.tools must be a list of names, got {tools!r}")
        self._tools = None if tools is None else frozenset(tools)
        self._measure: Measure = require_choice("CallSuccess.measure", measure, Measure)
        self._failure = None if failure is None else compiled_pattern("CallSuccess.failure", failure)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) if sample.turn_ends else None for sample in samples]

    def _score(self, sample: Sample) -> Score:
        results = [result for result in sample.tool_results if self._tools is None or result.name in self._tools]
        try:
            num_successful = sum(not self._failed(result) for result in results)
        except TimeoutError:
            return Score(math.nan, {"reason": "the pattern of a failure took too long"})
        share = num_successful / len(results) if results else 0.0
        value = share if self._measure == "share" else float(num_successful > 0)
        return Score(value, {"reason": f"{num_successful} of {len(results)} calls succeeded"})

    def _failed(self, result: ToolResult) -> bool:
        pattern = self._failure
        return result.failed or (
            pattern is not None and pattern.search(result.text, timeout=PATTERN_LIMIT_S) is not None
        )


@final
class RequiredCalls:
    """Reward: 1 if the conversation executed all required calls of tools and no redundant one, else 0.

    A required call is executed if a call with this name and equal arguments succeeded. A redundant call is a further
    successful one of the same tools, or of ``tools`` if they are set; other tools, such as those that only read, may be
    called freely. ``partial: true`` gives the share of the required calls, 0 with a redundant one. The reference, in
    ``column``, has the form of ``tool_calls``. None for a sample without turns in an environment.

    Example: ``{name: required_calls, column: calls, tools: [cancel_order, refund]}``.
    Range: 0 or 1, with ``partial`` 0 to 1.
    Source: the verifier of CoVe (arXiv:2603.01940) according to a published note on it: all constraints of the task are
    satisfied, without redundancy. Deviation: constraints are calls, compared by their arguments.
    Traps: arguments must be equal, 5 is not "5"; the environment must report names and arguments of calls (``tools``,
    ``tool_object`` and ``mcp`` do).
    """

    deterministic = True

    def __init__(self, column: str = "answer", tools: Sequence[str] | None = None, partial: bool = False) -> None:
        if isinstance(tools, str):
            raise ConfigError(f"RequiredCalls.tools must be a list of names, got {tools!r}")
        self.column = column
        self._tools = None if tools is None else frozenset(tools)
        self._partial = partial

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("required_calls", samples, self.column, _required)
        return [
            self._score(sample, reference) if reference is not None and sample.turn_ends else None
            for sample, reference in zip(samples, references, strict=True)
        ]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(value, _required, "one or more calls of tools")

    def _score(self, sample: Sample, required: Sequence[ToolCall]) -> Score:
        tools = self._tools or {call.name for call in required}
        executed = Counter(
            _key(result.name, result.arguments)
            for result in sample.tool_results
            if result.name in tools and not result.failed
        )
        needed = Counter(_key(call.name, call.parameters) for call in required)
        num_executed, num_redundant = (executed & needed).total(), (executed - needed).total()
        share = 0.0 if num_redundant else num_executed / len(required)
        reason = f"{num_executed} of {len(required)} required calls, {num_redundant} redundant"
        return Score(share if self._partial else float(share == 1), {"reason": reason})


def _required(value: Any) -> list[ToolCall] | None:
    return parse_calls(value) or None if isinstance(value, str | list | tuple | dict) else None


def _key(name: str, arguments: Any) -> str:
    return json.dumps([name, arguments], sort_keys=True, default=repr)
