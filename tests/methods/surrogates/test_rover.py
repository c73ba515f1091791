"""ROVER (random policy valuation): numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.values import LOGPROB_MEAN
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# Q = 0.3, 0 and 0, 0.1; what follows the first tokens is worth -0.2 and 0.4; A = 0.5, -0.5:
# (0.3 - (0.5 - 0.2))^2 + (0 - 0.5)^2 + (0 - (-0.5 + 0.4))^2 + (0.1 + 0.5)^2 = 0 + 0.25 + 0.01 + 0.36 over four
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((0.3, 0.0), (0.0, 0.1)),
        values={
            LOGPROB_MEAN: [[-5.0, -3.2], [-2.0, -4.0]],
            replace(LOGPROB_MEAN, view="before"): [[-1.0, -3.0], [-2.5, -4.4]],
        },
    ),
    0.62 / 4,
)


def test_loss_of_the_method() -> None:
    assert_loss("rover", *LOSS)
