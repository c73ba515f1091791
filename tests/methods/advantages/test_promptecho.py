"""PromptEcho: numbers worked out by hand."""

from __future__ import annotations

from math import log

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# as awm with A = 0.5 and -0.5: ratios 2.5, held at 2, and 1
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((log(2.5),), (0.0,)),
        values={from_reference("velocity_mse"): [[0.5]] * 2},
    ),
    -0.25 + 5e-4,
)


def test_loss_of_the_method() -> None:
    assert_loss("promptecho", *LOSS)
