"""Rows that begin as something that is given, or that are drawn beside others."""

from __future__ import annotations

from collections.abc import Sequence

from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO_6

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # a positive drawn hotter is worth 1 and moves nobody's mean
    "aepo": (Step(reward=(1, 0, 1), lengths=[1] * 3, origins=(0, 0, 2)), [[A_TWO_6], [-A_TWO_6], [1.0]]),
}

ELSEWHERE = {"spec-rl"}
