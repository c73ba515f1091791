"""AWM (advantage weighted matching): numbers worked out by hand."""

from __future__ import annotations

from math import log

from mmgrpo.values import from_reference
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# ratios 2.5, held at 2, and 1: (-2 A + A) / 2; kl 1e-3 * 0.5
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((log(2.5),), (0.0,)),
        values={from_reference("velocity_mse"): [[0.5]] * 2},
    ),
    -A_TWO / 2 + 5e-4,
)


def test_loss_of_the_method() -> None:
    assert_loss("awm", *LOSS)
