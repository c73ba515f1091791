"""Rows that begin as something that is given, or that are drawn beside others."""

from __future__ import annotations

from collections.abc import Sequence

from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO_6

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # rows of 1, 0 and 1, row 1 from row 0 after a token: values 2/3 of the prompt, 1/2 there. Row 2 is right after two
    # tokens, row 0 after three: it loses a third of what it has
    "rose": (
        Step(reward=(1, 0, 1), drawn_by=((0, 0, 0), (0, 1, 1), (2, 2, 2)), lengths=(3, 3, 2)),
        [[-1 / 6 - 1 / 18, 1 / 2 - 1 / 6, 1 / 2 - 1 / 6], [-1 / 6, -1 / 2, -1 / 2], [1 / 3, 1 / 3, 0]],
    ),
    # a positive drawn hotter is worth 1 and moves nobody's mean
    "aepo": (Step(reward=(1, 0, 1), lengths=[1] * 3, origins=(0, 0, 2)), [[A_TWO_6], [-A_TWO_6], [1.0]]),
}

ELSEWHERE = {"seele", "spec-rl"}
