"""OORL with GEPO: numbers worked out by hand."""

from __future__ import annotations

from math import exp, log1p

from mmgrpo.values import of_view
from tests.configs.method_rows import ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

# log-ratios to the reference of 1 and 3, and of -1 and -3, times 0.1: means 0.2 and -0.2, a variance of 0.01, over
# two groups. Of the sampled pair 1 and 0 less 0.5, over the sample deviation 0.7071068; at the ratios 2, held at 1.2,
# and 1, over six tokens
LOSS = (
    Step(
        reward=(1.0, 1.0, 0.0, 0.0, *ONE_OF_TWO),
        groups=(0, 0, 0, 0, 1, 1),
        sources=(2, 2, 2, 2, 0, 0),
        old_logprob=((-5.0,),) * 6,
        log_ratio=((0.0,), (0.0,), (0.0,), (0.0,), (UP,), (0.0,)),
        values={of_view("reference"): [[-6.0], [-8.0], [-4.0], [-2.0], [-9.0], [-9.0]]},
    ),
    0.01 * (log1p(exp(-0.4)) + 0.01) / 2 - 0.2 * 0.7071068 / 6,
)


def test_loss_of_the_method() -> None:
    assert_loss("oorl", *LOSS)
