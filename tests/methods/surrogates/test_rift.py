"""RIFT: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# ratio 4 of the bad one, with a ceiling of 3: A (3 - 1) / 2, A = 0.5 / 0.50001
LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((0.0,), (log(4.0),))), 0.5 / 0.50001)


def test_loss_of_the_method() -> None:
    assert_loss("rift", *LOSS)
