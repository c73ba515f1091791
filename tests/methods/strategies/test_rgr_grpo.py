"""RGR-GRPO (reward and guidance through rubrics): numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_steps import Step, assert_loss

A_THREE = 1 / 3 / 0.5773513
# as critique-grpo's
LOSS = (
    Step(
        reward=(1, 0, 1),
        origins=(0, 0, 2),
        old_logprob=[[-1.0], [-1.0], [log(0.1)]],
        entropy=[[0.0]] * 3,
    ),
    A_THREE * 0.5 / 3 / 4096,
)


def test_loss_of_the_method() -> None:
    assert_loss("rgr-grpo", *LOSS)
