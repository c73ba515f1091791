"""The time of a run by phase."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mmgrpo.report.logs import Log, by_step
from mmgrpo.report.run_info import elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The seconds of a phase, its share of the total, and the number and name of its occurrences."""

    name: str
    total_s: float
    frac: float
    num: int
    occasion: str


def phases(about: Mapping[str, Any], metrics: Log, warmup: Log, evaluation: Log) -> list[Phase]:
    """Seconds by phase.

    Every update of a step repeats the step's rollout and reward times, so those count once; the time of the warm-up is
    cumulative and restarts at zero after a resume.
    """
    picks = {"rollout": max, "reward": max, "update": sum}
    steps = {name: by_step(metrics, f"time/{name}_s", pick) for name, pick in picks.items()}
    rows = [(name, sum(values.values()), len(values), "step") for name, values in steps.items() if values]
    warm = list(by_step(warmup, "time_s", max).items())
    if warm:
        times = [value for _, value in warm] + [0.0]
        rows.insert(0, ("warm-up", sum(a for a, b in pairwise(times) if b < a), int(warm[-1][0]) or 1, "step"))
    keys = [key for key in evaluation.numeric_keys() if re.fullmatch(r"time.*_s", key)]
    spent = [sum(by_step(evaluation, key, sum).values()) for key in keys]
    if spent:
        rows.append(("evaluation", sum(spent), len(evaluation.rows), "evaluation"))
    rest = (elapsed_s(about) or 0.0) - sum(row[1] for row in rows)
    if rows and rest > 0:
        rows.append(("everything else", rest, 0, ""))
    total_s = sum(row[1] for row in rows) or 1.0
    return [Phase(name=n, total_s=s, frac=s / total_s, num=num, occasion=per) for n, s, num, per in rows]
