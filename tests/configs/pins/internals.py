"""Methods of what the network says inside, of which ``tests/maths/test_internals.py`` has more."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.values import GRADIENT_CURVATURE, GRADIENT_SQUARE, attention_distance, attention_influence
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # looked at 5, 1, 1, 6 and 0, so that the first and the fourth are anchors, at least the 0.6 quantile of 2.6; the
    # fourth looks no further back than the median of 3, and of the changes 5, 7, 1 before it the second's is at least
    # the median of 2: the fourth gives half of its 0.5 to it
    "preplan-and-anchor-credit": (
        Step(
            reward=ONE_OF_TWO,
            lengths=(5, 5),
            values={
                attention_distance(10): [[4.0, 9.0, 2.0, 1.0, 3.0]] * 2,
                attention_influence(10, 50): [[5.0, 1.0, 1.0, 6.0, 0.0]] * 2,
            },
        ),
        [[1.5 * A_TWO, 1.25 * A_TWO, A_TWO, 1.25 * A_TWO, A_TWO], [-A_TWO] * 5],
    ),
}

LOSSES: dict[str, tuple[Step, float]] = {
    # A^2 = 0.5, so the shift is 5e-5 a at lr 1e-4, below 5e-4 up to a = 10: the wrong sample's first token is left
    # out, and its mean is the other's, at a ratio of 1.1: (1.1 - 1) A / 2
    "capo": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((0.0, 0.0), (0.0, 0.0953101798)),
            values={
                GRADIENT_SQUARE: ((1.0, 9.0), (14.0, 9.0)),
                GRADIENT_CURVATURE: ((0.0, 0.0), (0.0, 0.0)),
            },
        ),
        0.1 * 0.5 / 0.7072068 / 2,
    ),
}

ELSEWHERE = {"verl"}
"""In ``tests/training/test_internal_runs.py``: its usual numbers are of a run."""
