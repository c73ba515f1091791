"""Losses of methods that read the whole distribution of a token."""

from __future__ import annotations

from dataclasses import replace
from math import log

from mmgrpo.values import ENTROPY, LOGPROB_MEAN, RANK, nucleus_entropy, top_logprob
from tests.configs.method_steps import Step
from tests.configs.pins.rows import ONE_OF_TWO

A_TWO = 0.5 / (0.5**0.5 + 1e-6)
LOSSES: dict[str, tuple[Step, float]] = {
    # of each row the second token alone is unsure; it is the wrong row's first choice, so that this counts 1.1. The
    # ratio of the right row's first is 1.5, held at 1.2: (-1.2 A - A + A + 1.1 A) / 4, whatever the candidates are
    "simko": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((log(1.5), 0.0), (0.0, 0.0)),
            values={
                ENTROPY: [[0.1, 2.0]] * 2,
                RANK: [[0.0, 0.0]] * 2,
                top_logprob(3): [[-7.0, -9.0]] * 2,
            },
        ),
        -0.1 * A_TWO / 4,
    ),
    # A = 0.5, -0.5, the first ratio of 1.5 held at 1.2: (-0.6 - 0.5 + 0.5 + 0.5) / (2 * 3072); there is no anchor yet
    "siren": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((log(1.5), 0.0), (0.0, 0.0)),
            values={nucleus_entropy(0.8): [[0.1, 2.0]] * 2},
        ),
        -0.1 / 6144,
    ),
    # Q = 0.3, 0 and 0, 0.1; what follows the first tokens is worth -0.2 and 0.4; A = 0.5, -0.5:
    # (0.3 - (0.5 - 0.2))^2 + (0 - 0.5)^2 + (0 - (-0.5 + 0.4))^2 + (0.1 + 0.5)^2 = 0 + 0.25 + 0.01 + 0.36 over four
    "rover": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((0.3, 0.0), (0.0, 0.1)),
            values={
                LOGPROB_MEAN: [[-5.0, -3.2], [-2.0, -4.0]],
                replace(LOGPROB_MEAN, view="before"): [[-1.0, -3.0], [-2.5, -4.4]],
            },
        ),
        0.62 / 4,
    ),
}
