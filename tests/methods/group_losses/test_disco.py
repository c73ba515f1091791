"""DisCO: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# -(1.1 - log mean(e^0.9, e^1, e^1.2)) = -0.058781; KL 0.00693213, over 1e-4 by 0.00683213, times 1000 KL
LOSS = (
    Step(reward=ONE_OF_FOUR, log_ratio=tuple((log(ratio),) for ratio in (1.1, 0.9, 1.0, 1.2))),
    -0.058781 + 6.83213 * 0.00693213,
)


def test_loss_of_the_method() -> None:
    assert_loss("disco", *LOSS)
