"""APO (asymmetric policy optimization): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# A = 1.5 and -0.5; the last sample is 1,000 longer than the right one: times 2 - 1.00001^-1000 = 1.0099501; one of
# four is right: its divergence counts 1 - e^(-e / 4) = 0.4931654; 1,004 decisions
LOSS = (
    Step(
        reward=ONE_OF_FOUR,
        lengths=(1, 1, 1, 1001),
        values={from_reference("k3"): [[1000.0] + [0.0] * 1000, *[[0.0] * 1001] * 3]},
    ),
    (-1.5 + 0.5 + 0.5 + 1001 * 0.5 * 1.0099501 + 0.001 * 1000 * 0.4931654) / 1004,
)


def test_loss_of_the_method() -> None:
    assert_loss("apo", *LOSS)
