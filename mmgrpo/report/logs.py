"""What the files of a run folder hold, as far as they can be read."""

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
    """The readable lines of a .jsonl file, and how many were not."""

    name: str
    rows: tuple[Mapping[str, Any], ...] = ()
    num_unreadable: int = 0

    def has(self, key: str) -> bool:
        """Whether any line holds a number under the key."""
        return any(is_number(row.get(key)) for row in self.rows)

    def numeric_keys(self) -> list[str]:
        """The keys that hold a number somewhere, in order of appearance, as far as they can be drawn."""
        found = dict.fromkeys(key for row in self.rows for key, value in row.items() if is_number(value))
        return list(found)[:MAX_KEYS]


def read_log(files: RunFiles, name: str) -> Log:
    """The .jsonl file of that name in the run folder; empty if there is none.

    A line that is no JSON object, that is longer, deeper or of more parts than is read, or whose step is no number that
    counts, is unreadable.
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
    """The lines that the tasks of a mixed run wrote at a step as one; their numbers have names of their own."""
    rows: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(log.rows):
        rows.setdefault(row.get("step", f"line {number}"), {}).update(row)
    return replace(log, rows=tuple(rows.values()))


def parse_mapping(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is; None if it is anything else, or deeper than is read."""
    try:
        value = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_shallow(value) else None


def _whole(text: str) -> int | float:
    """A whole number; one that no 64 bits hold becomes a float, which may be infinite."""
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
    """Whether a value counts steps."""
    return is_number(value) and -LARGEST_STEP <= value <= LARGEST_STEP


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that can be drawn: neither NaN nor so large that its square is infinite."""
    return is_number(value) and abs(value) <= LARGEST


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether JSON would call it a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite_numbers(value: object, count: int) -> list[float] | None:
    """The value, if it is a list of that many finite numbers."""
    if not isinstance(value, list) or len(value) != count:
        return None
    return [float(one) for one in value] if all(is_finite(one) for one in value) else None


def by_step(log: Log, key: str, pick: Callable[[list[float]], float]) -> dict[float, float]:
    """One finite value per step, picked from the step's updates; a line without a step counts as its own."""
    found: dict[float, list[float]] = {}
    for index, row in enumerate(log.rows):
        value, step = row.get(key), row.get("step")
        if is_finite(value):
            near_zero = 0.0 if abs(value) < SMALLEST else value
            found.setdefault(step if is_number(step) else index, []).append(near_zero)
    return {step: pick(values) for step, values in sorted(found.items())}


def mean_or_none(values: Iterable[float]) -> float | None:
    """The values' mean; None if there are none."""
    kept = list(values)
    return fmean(kept) if kept else None
