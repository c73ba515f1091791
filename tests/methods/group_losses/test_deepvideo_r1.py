"""DeepVideo-R1 (Reg-GRPO): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# sums 0.4 and 0 are 0.2 from their mean, 0.2 / 1.2 with the deviation; the advantages 0.5 / 0.7072068
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((0.3, 0.1), (0.0, 0.0)),
        values={from_reference("k3"): [[0.5, 0.0], [0.0, 0.0]]},
    ),
    0.2919675 + 0.04 * 0.5 / 4,
)


def test_loss_of_the_method() -> None:
    assert_loss("deepvideo-r1", *LOSS)
