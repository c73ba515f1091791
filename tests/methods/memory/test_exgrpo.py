"""ExGRPO: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_steps import Step, assert_loss

# A = -1 / 3 twice, 2 / 3; a ratio of 1.5 is not held, and of the remembered one 0.4 / 0.5
LOSS = (
    Step(
        reward=(0, 0, 1),
        log_ratio=((log(1.5),), (0.0,), (log(0.4),)),
        entropy=((0.3,),) * 3,
        origins=(0, 0, 1),
    ),
    ((1.5 + 1) / 3 - 0.8 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
)


def test_loss_of_the_method() -> None:
    assert_loss("exgrpo", *LOSS)
