"""CAPO (curvature-aware): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import GRADIENT_CURVATURE, GRADIENT_SQUARE
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# A^2 = 0.5, so the shift is 5e-5 a at lr 1e-4, below 5e-4 up to a = 10: the wrong sample's first token is left
# out, and its mean is the other's, at a ratio of 1.1: (1.1 - 1) A / 2
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((0.0, 0.0), (0.0, 0.0953101798)),
        values={
            GRADIENT_SQUARE: ((1.0, 9.0), (14.0, 9.0)),
            GRADIENT_CURVATURE: ((0.0, 0.0), (0.0, 0.0)),
        },
    ),
    0.1 * 0.5 / 0.7072068 / 2,
)


def test_loss_of_the_method() -> None:
    assert_loss("capo", *LOSS)
