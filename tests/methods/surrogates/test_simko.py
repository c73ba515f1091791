"""SimKO (simple pass@K optimization): numbers worked out by hand."""

from __future__ import annotations

from math import log

from mmgrpo.values import ENTROPY, RANK, top_logprob
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

A_TWO = 0.5 / (0.5**0.5 + 1e-6)
# of each row the second token alone is unsure; it is the wrong row's first choice, so that this counts 1.1. The
# ratio of the right row's first is 1.5, held at 1.2: (-1.2 A - A + A + 1.1 A) / 4, whatever the candidates are
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((log(1.5), 0.0), (0.0, 0.0)),
        values={
            ENTROPY: [[0.1, 2.0]] * 2,
            RANK: [[0.0, 0.0]] * 2,
            top_logprob(3): [[-7.0, -9.0]] * 2,
        },
    ),
    -0.1 * A_TWO / 4,
)


def test_loss_of_the_method() -> None:
    assert_loss("simko", *LOSS)
