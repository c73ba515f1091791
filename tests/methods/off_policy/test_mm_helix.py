"""AHPO (MM-HELIX): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_loss
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO, UP

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.2) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("mm-helix", *LOSS)
