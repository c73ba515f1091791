"""MaskGRPO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# ratio e^0.3, held at 1.2: -A (1.2 + 1 - 1 - 1) / 4, A = 0.5 / 0.7071168; kl 0.01 * 0.5
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((0.3, 0.0), (0.0, 0.0)),
        values={from_reference("k3"): [[0.5, 0.5]] * 2},
    ),
    -0.5 / (0.5**0.5 + 1e-5) * 0.2 / 4 + 0.01 * 0.5,
)


def test_loss_of_the_method() -> None:
    assert_loss("maskgrpo", *LOSS)
