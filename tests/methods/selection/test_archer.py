"""Archer: numbers worked out by hand."""

from __future__ import annotations

from math import log

from mmgrpo.values import from_reference
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# entropies 0 .. 4 of quantile 3.2, ratio 1.4: A (5 * 1.4 - 4 * 1.2 - 1.4) / 10, and four fifths of 0.001 * 0.5
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=[[log(1.4)] * 5] * 2,
        entropy=[[0.0, 1.0, 2.0, 3.0, 4.0]] * 2,
        values={from_reference("k3"): [[0.5] * 5] * 2},
    ),
    0.08 * A_TWO_6 + 0.0004,
)


def test_loss_of_the_method() -> None:
    assert_loss("archer", *LOSS)
