"""REAL (rewards as labels): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_loss

# log(1 + e^-0.2 + e^0) + log(1 + e^-0.4 + e^0.6)
LOSS = (Step(reward=(1, 0, 0, 1), log_ratio=((0.1, 0.1), (-0.2, -0.2), (0.3, 0.3), (0.0, 0.0))), 2.286887)


def test_loss_of_the_method() -> None:
    assert_loss("real", *LOSS)
