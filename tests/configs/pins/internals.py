"""Methods of what the network says inside, of which ``tests/maths/test_internals.py`` has more."""

from __future__ import annotations

from mmgrpo.values import GRADIENT_CURVATURE, GRADIENT_SQUARE
from tests.configs.method_steps import Step
from tests.configs.pins.rows import ONE_OF_TWO

LOSSES: dict[str, tuple[Step, float]] = {
    # A^2 = 0.5, so the shift is 7.5e-6 a, below 0.01 up to a = 1333: the wrong sample's first token is left out, and
    # its mean is the other's, at a ratio of 1.1: (1.1 - 1) A / 2
    "capo": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((0.0, 0.0), (0.0, 0.0953101798)),
            values={
                GRADIENT_SQUARE: ((100.0, 900.0), (1400.0, 900.0)),
                GRADIENT_CURVATURE: ((0.0, 0.0), (0.0, 0.0)),
            },
        ),
        0.1 * 0.5 / 0.7072068 / 2,
    ),
}

ELSEWHERE = {"verl"}
"""In ``tests/train/test_internal_runs.py``: its usual numbers are of a run."""
