"""GDPO (group diffusion policy optimization): numbers worked out by hand."""

from __future__ import annotations

from math import exp

from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# the levels of a sample add up: ratios e^(0.05 + 0.06) and e^-0.3, held at 0.8: -0.5 (e^0.11 - 0.8) / 2
LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((0.05, 0.06), (-0.1, -0.2))),
    -0.5 * (exp(0.11) - 0.8) / 2,
)


def test_loss_of_the_method() -> None:
    assert_loss("gdpo--improving-reasoning", *LOSS)
