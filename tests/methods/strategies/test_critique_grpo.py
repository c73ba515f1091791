"""Critique-GRPO: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_steps import Step, assert_loss

A_THREE = 1 / 3 / 0.5773513
# 1 and 0 were drawn, a refinement of 1 has the probability 0.1, so that p / (p + 0.1) is 1/2: A (-1 + 2 - 1/2) over
# three samples and 6144 tokens
LOSS = (
    Step(
        reward=(1, 0, 1),
        origins=(0, 0, 2),
        old_logprob=[[-1.0], [-1.0], [log(0.1)]],
        entropy=[[0.0]] * 3,
    ),
    A_THREE * 0.5 / 3 / 6144,
)


def test_loss_of_the_method() -> None:
    assert_loss("critique-grpo", *LOSS)
