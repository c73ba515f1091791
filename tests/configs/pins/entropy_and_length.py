"""What decisions are worth by their entropy, and samples by their length."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from mmgrpo.values import from_reference
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO

W = 2 / (1 + exp(-2 * A_TWO + 1))
"""Twice the larger weight of two decisions, of advantages A_TWO and -A_TWO and entropies 0.5 and 1.5."""

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    "egsw": (Step(reward=ONE_OF_TWO, entropy=((0.5,), (1.5,))), [[A_TWO * W], [-A_TWO * (2 - W)]]),
    # one of five groups: the first, of 1, 2 and 3 decisions, z -1, 0, 1: 1 - 0.6 / (1 + e^-z) of deviation 0.1386352
    "grpo-lambda": (
        Step(
            reward=(1, 1, 1, *[1, 0] * 4),
            groups=(0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4),
            lengths=(1, 2, 3, *[1] * 8),
        ),
        [
            *[[z * 0.1386352 / 0.1387352] * 3 for z in (1, 0, -1)],
            *[[A_TWO] * 3, [-A_TWO] * 3] * 4,
        ],
    ),
}

# of 0.1, 0.5, 0.3, 0.4, 0.2 the quantile 0.8 is 0.42, of the second row 0.58: one decision of five counts in each
LOSSES: dict[str, tuple[Step, float]] = {
    "earl": (
        Step(
            reward=ONE_OF_TWO,
            entropy=((0.1, 0.5, 0.3, 0.4, 0.2), (0.4, 0.5, 0.45, 0.9, 0.2)),
            log_ratio=((0.0, 0.1, 0.0, 0.0, 0.0), (0.0,) * 5),
            values={from_reference("k3"): [[0.5] * 5] * 2},
        ),
        -(A_TWO * exp(0.1) - A_TWO) / 10 + 0.001 * 0.5,
    ),
}

ELSEWHERE = {"coba-rl"}
