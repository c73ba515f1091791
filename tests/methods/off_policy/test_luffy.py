"""LUFFY: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_steps import Step, assert_loss

# A = 2 / 3, -1 / 3, -1 / 3; the answer's p = 0.9: 0.9 / 1 of its A; -1 / 3 of ratios 1.1 and 1; entropy 0.001 * 0.3
LOSS = (
    Step(
        reward=(0, 0, 1),
        old_logprob=((-1.0,), (-1.0,), (log(0.9),)),
        log_ratio=((log(1.1),), (0.0,), (0.0,)),
        entropy=((0.3,),) * 3,
        sources=(0, 0, 2),
    ),
    ((1.1 + 1) / 3 - 0.9 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
)


def test_loss_of_the_method() -> None:
    assert_loss("luffy", *LOSS)
