"""ProRL: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_steps import Step, assert_loss
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO, UP

LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,)), values={from_reference("k3"): ((0.5,), (0.5,))}),
    A_TWO * (1 - 1.4) / 2 + 0.00005,
)


def test_loss_of_the_method() -> None:
    assert_loss("prorl", *LOSS)
