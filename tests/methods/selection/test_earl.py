"""EARL: numbers worked out by hand."""

from __future__ import annotations

from math import exp

from mmgrpo.values import from_reference
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

LOSS = (
    Step(
        reward=ONE_OF_TWO,
        entropy=((0.1, 0.5, 0.3, 0.4, 0.2), (0.4, 0.5, 0.45, 0.9, 0.2)),
        log_ratio=((0.0, 0.1, 0.0, 0.0, 0.0), (0.0,) * 5),
        values={from_reference("k3"): [[0.5] * 5] * 2},
    ),
    -(A_TWO * exp(0.1) - A_TWO) / 10 + 0.001 * 0.5,
)


def test_loss_of_the_method() -> None:
    assert_loss("earl", *LOSS)
