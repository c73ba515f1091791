"""Reads the logs of a run folder; malformed lines are counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeGuard

from mmgrpo.report.run_files import RunFiles

MAX_DEPTH = 40
MAX_KEYS = 300
LARGEST = 1e150
SMALLEST = 1e-150
LARGEST_STEP = 2**53


@dataclass(frozen=True, slots=True)
class Log:
    """The readable lines of a .jsonl file, and the number of unreadable ones."""

    name: str
    rows: tuple[Mapping[str, Any], ...] = ()
    num_unreadable: int = 0

    def has(self, key: str) -> bool:
        """Whether any line has a number under the key."""
        return any(is_number(row.get(key)) for row in self.rows)

    def numeric_keys(self) -> list[str]:
        """The first MAX_KEYS keys with a number in any line, in order of appearance."""
        keys = dict.fromkeys(key for row in self.rows for key, value in row.items() if is_number(value))
        return list(keys)[:MAX_KEYS]


def read_log(files: RunFiles, name: str) -> Log:
    """The .jsonl file of that name in the run folder; empty if there is none.

    A line is unreadable if it is no JSON object, exceeds the limits of length, depth or parts, or has an invalid step.
    """
    rows, num_unreadable = [], 0
    for line in files.lines(name):
        row = None if line is None else parse_mapping(line)
        if row is None or ("step" in row and not is_step(row["step"])):
            num_unreadable += 1
        else:
            rows.append(row)
    return Log(name, tuple(rows), num_unreadable)


def by_tasks(log: Log) -> Log:
    """The log with the lines of all tasks of a mixed run merged per step; their keys differ."""
    rows: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(log.rows):
        rows.setdefault(row.get("step", f"line {number}"), {}).update(row)
    return replace(log, rows=tuple(rows.values()))


def parse_mapping(text: str) -> dict[str, Any] | None:
    """The JSON object in a text; None for anything else and for objects deeper than MAX_DEPTH."""
    try:
        value = json.loads(text, parse_int=_parse_int)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_shallow(value) else None


def _parse_int(text: str) -> int | float:
    """An integer; one beyond 64 bits becomes a float, which may be infinite."""
    return int(text) if len(text) < 19 else float(text)


def _is_shallow(value: object) -> bool:
    layer = [value]
    for _ in range(MAX_DEPTH):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return True
    return False


def is_step(value: object) -> bool:
    """Whether a value is a valid step number."""
    return is_number(value) and -LARGEST_STEP <= value <= LARGEST_STEP


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that can be plotted: not NaN, and its square is finite."""
    return is_number(value) and abs(value) <= LARGEST


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a JSON number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite_numbers(value: object, count: int) -> list[float] | None:
    """The value, if it is a list of that many finite numbers."""
    if not isinstance(value, list) or len(value) != count:
        return None
    return [float(number) for number in value] if all(is_finite(number) for number in value) else None


def by_step(log: Log, key: str, pick: Callable[[list[float]], float]) -> dict[float, float]:
    """One finite value per step, reduced over the updates of the step; a line without a step is a separate step."""
    values_by_step: dict[float, list[float]] = {}
    for index, row in enumerate(log.rows):
        value, step = row.get(key), row.get("step")
        if is_finite(value):
            near_zero = 0.0 if abs(value) < SMALLEST else value
            values_by_step.setdefault(step if is_number(step) else index, []).append(near_zero)
    return {step: pick(values) for step, values in sorted(values_by_step.items())}


def mean_or_none(values: Iterable[float]) -> float | None:
    """The values' mean; None if there are none."""
    numbers = list(values)
    return fmean(numbers) if numbers else None
