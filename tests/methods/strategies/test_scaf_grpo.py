"""Scaf-GRPO: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (log(4.0),))), A_TWO_6 * (3 - 1.2) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("scaf-grpo", *LOSS)
