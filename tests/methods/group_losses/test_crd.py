"""CRD (centered reward distillation): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# 10 * 0.005 less A = 0.5 / 0.5001, squared, at 0.05; kl 0.1 * 0.5
LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((0.01,), (0.0,)), values={from_reference("velocity_mse"): [[0.5]] * 2}),
    0.0451060 + 0.05,
)


def test_loss_of_the_method() -> None:
    assert_loss("crd", *LOSS)
