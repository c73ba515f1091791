"""RL-PLUS: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_steps import Step, assert_loss

# the answer's p = p_old = 0.2: w = 0.6, 2 p / (p_old + w) = 0.5, (1 - p)^0.5 = 0.894427
LOSS = (
    Step(
        reward=(0, 0, 1),
        old_logprob=((-1.0,), (-1.0,), (log(0.2),)),
        log_ratio=((log(1.1),), (0.0,), (0.0,)),
        entropy=((0.3,),) * 3,
        sources=(0, 0, 2),
    ),
    ((1.1 + 1) / 3 - 0.5 * 0.894427 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
)


def test_loss_of_the_method() -> None:
    assert_loss("rl-plus", *LOSS)
