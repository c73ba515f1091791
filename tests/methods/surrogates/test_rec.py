"""REC (group-relative REINFORCE, clipped on one side): numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# A = 0.5 at log 1.1 - 1, and -0.5 at a ratio below 0.8, which is done
LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((log(1.1),), (log(0.5),))),
    0.5 * (1 - 0.0953102) / 2,
)


def test_loss_of_the_method() -> None:
    assert_loss("rec", *LOSS)
