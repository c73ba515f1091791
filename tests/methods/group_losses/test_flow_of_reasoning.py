"""Flow of Reasoning: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# log(1) and log(0.001) = -6.907755 less sums -2 and -2: +-3.453878 from their mean
LOSS = (Step(reward=ONE_OF_TWO), 3.453878**2)


def test_loss_of_the_method() -> None:
    assert_loss("flow-of-reasoning", *LOSS)
