"""ExPO (self-explanation): numbers worked out by hand."""

from __future__ import annotations

from math import nan

from tests.configs.method_rows import A_TWO, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

# a pair at the ratios 2, held at 1.2, and 1: a mean of -0.1 A; an explanation of log-probabilities -0.5 and -1,
# 0.75. They come to 2 / 3 (-0.1 A + 0.75)
LOSS = (
    Step(
        reward=(*ONE_OF_TWO, 1.0),
        sources=(0, 0, 2),
        named_rewards={"explained": (nan, nan, 1.0)},
        log_ratio=((UP, UP), (0.0, 0.0), (0.5, 0.0)),
    ),
    2 / 3 * (-0.1 * A_TWO + 0.75),
)


def test_loss_of_the_method() -> None:
    assert_loss("expo", *LOSS)
