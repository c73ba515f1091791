"""DCPO (dynamic bounds): numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import A_TWO, DOWN, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

# q = 0.9: the ratio is held within 0.768742 and 1.187184
LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((UP,), (DOWN,)), old_logprob=((log(0.9),), (log(0.9),))),
    A_TWO * (0.768742 - 1.187184) / 2,
)


def test_loss_of_the_method() -> None:
    assert_loss("dcpo-clip", *LOSS)
