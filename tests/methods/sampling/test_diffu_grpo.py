"""diffu-GRPO (d1): numbers worked out by hand."""

from __future__ import annotations

from math import exp

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# rewards less their mean 0.5, -0.5; ratios e^0.3, held at 1.5 not at all, and 1: -0.5 (e^0.3 + 1 - 1 - 1) / 4; kl
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((0.3, 0.0), (0.0, 0.0)),
        values={from_reference("k3"): [[0.5, 0.5]] * 2},
    ),
    -0.5 * (exp(0.3) - 1) / 4 + 0.04 * 0.5,
)


def test_loss_of_the_method() -> None:
    assert_loss("diffu-grpo", *LOSS)
