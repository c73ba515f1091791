"""Simple Policy Optimization (SPO): numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# r = 1.5: -(1.5 - 0.25 / 0.4) A
LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((log(1.5),), (0.0,))), A_TWO * (1 - 0.875) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("simple-policy-optimization", *LOSS)
