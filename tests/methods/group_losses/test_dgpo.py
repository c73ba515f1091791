"""DGPO (direct group preference optimization): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference, of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# A = 0.5 / 0.5001; errors 0.2 and 0.4, 0.001 and 0 below the reference's: w = sigmoid(-100 * 0.001 A / 2), that is
# 0.487505; w A (0.2 - 0.4) / 2; kl 0.02 * 0.5
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-0.2,), (-0.4,)),
        values={of_view("reference"): [[-0.201], [-0.4]], from_reference("velocity_mse"): [[0.5]] * 2},
    ),
    -0.487505 * 0.5 / 0.5001 * 0.1 + 0.01,
)


def test_loss_of_the_method() -> None:
    assert_loss("dgpo", *LOSS)
