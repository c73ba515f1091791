"""What the files of a run folder hold, as far as they can be read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard


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
        """Every key that holds a number somewhere, in order of appearance."""
        return list(dict.fromkeys(key for row in self.rows for key, value in row.items() if is_number(value)))


def read_text(path: Path) -> str | None:
    """The file's text, a sign in place of each byte that is none; None if there is no file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def read_log(run: Path, name: str) -> Log:
    """The .jsonl file of that name in the run folder; empty if there is none."""
    rows, num_unreadable = [], 0
    for line in (read_text(run / name) or "").split("\n"):  # splitlines would also cut inside a JSON string
        if not line.strip():
            continue
        row = parse_mapping(line)
        if row is None:
            num_unreadable += 1
        else:
            rows.append(row)
    return Log(name, tuple(rows), num_unreadable)


def parse_mapping(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is; None if it is anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether JSON would call it a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite_numbers(value: object, count: int) -> list[float] | None:
    """The value, if it is a list of that many finite numbers."""
    if not isinstance(value, list) or len(value) != count:
        return None
    return [float(one) for one in value] if all(is_number(one) and math.isfinite(one) for one in value) else None


def by_step(log: Log, key: str, pick: Callable[[list[float]], float]) -> dict[float, float]:
    """One finite value per step, picked from the step's updates; a line without a step counts as its own."""
    found: dict[float, list[float]] = {}
    for index, row in enumerate(log.rows):
        value, step = row.get(key), row.get("step")
        if is_number(value) and math.isfinite(value):
            found.setdefault(step if is_number(step) else index, []).append(value)
    return {step: pick(values) for step, values in sorted(found.items())}


def mean_or_none(values: Iterable[float]) -> float | None:
    """The values' mean; None if there are none."""
    kept = list(values)
    return fmean(kept) if kept else None
