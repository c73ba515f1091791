"""Methods that imitate what the policy wrote, or prefer what is given, beside the loss of what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p, nan

from mmgrpo.values import of_view, seen_in
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, A_TWO_6, ONE_OF_TWO, UP

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # a pair, and two rows of what was learnt, of which one proved right: beside two others its mean is worth 2
    "mel": (
        Step(reward=(1.0, 0.0, 1.0, 0.0), groups=(0, 0, 1, 2), said={"proved": (nan, nan, 1.0, 0.0)}),
        [[A_TWO] * 2, [-A_TWO] * 2, [2.0, 2.0], [0.0, 0.0]],
    ),
}

LOSSES: dict[str, tuple[Step, float]] = {
    # a pair at the ratios 2, held at 1.2, and 1: a mean of -0.1 A; an explanation of log-probabilities -0.5 and -1,
    # 0.75. They come to 2 / 3 (-0.1 A + 0.75)
    "expo": (
        Step(
            reward=(*ONE_OF_TWO, 1.0),
            origins=(0, 0, 2),
            said={"explained": (nan, nan, 1.0)},
            log_ratio=((UP, UP), (0.0, 0.0), (0.5, 0.0)),
        ),
        2 / 3 * (-0.1 * A_TWO + 0.75),
    ),
    # log-ratios to the reference of 1 and 3, and of -1 and -3, times 0.1: means 0.2 and -0.2, a variance of 0.01, over
    # two groups. Of the drawn pair 1 and 0 less 0.5, over the sample deviation 0.7071068; at the ratios 2, held at 1.2,
    # and 1, over six tokens
    "oorl": (
        Step(
            reward=(1.0, 1.0, 0.0, 0.0, *ONE_OF_TWO),
            groups=(0, 0, 0, 0, 1, 1),
            origins=(2, 2, 2, 2, 0, 0),
            old_logprob=((-5.0,),) * 6,
            log_ratio=((0.0,), (0.0,), (0.0,), (0.0,), (UP,), (0.0,)),
            values={of_view("reference"): [[-6.0], [-8.0], [-4.0], [-2.0], [-9.0], [-9.0]]},
        ),
        0.01 * (log1p(exp(-0.4)) + 0.01) / 2 - 0.2 * 0.7071068 / 6,
    ),
    # the first of three parts is all right, the second all wrong, half of the third right: its ratios 2, held at 1.2,
    # and 1. The first one's answers have -1 and, under the second's text, -1.5 and -3: 0.5 and 2
    "meml-grpo": (
        Step(
            reward=(1.0, 1.0, 0.0, 0.0, *ONE_OF_TWO),
            log_ratio=((0.0,), (0.0,), (0.0,), (0.0,), (UP,), (0.0,)),
            values={
                of_view("weakest"): [[-1.5], [-3.0], [0.0], [0.0], [0.0], [0.0]],
                seen_in("weakest"): [[1.0], [1.0], [0.0], [0.0], [0.0], [0.0]],
            },
        ),
        (2.5 - 0.2 * A_TWO_6) / 6,
    ),
}

ELSEWHERE = {"depo"}
