"""Methods whose formulas were found late: in reproductions, and in the authors' code."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from mmgrpo.values import of_view
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO_6, ONE_OF_TWO

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # right: 1.15, 1.05 and the other way round, standardised +-sqrt(3) / 2; wrong: -1.04 and -1.16, likewise
    "gtpo--token-sequence": (
        Step(reward=(1, 1, 0, 0), entropy=((3, 1), (1, 3), (4, 1), (1, 4))),
        [[sign * sqrt(0.75), -sign * sqrt(0.75)] for sign in (1, -1, 1, -1)],
    ),
    # both decisions are of one step, whose last is 0.2 likelier than the reference finds it; of the other none is
    "prl": (
        Step(
            reward=ONE_OF_TWO,
            old_logprob=((-1.0, -1.0), (-1.0, -1.0)),
            values={of_view("reference"): [[-3.0, -1.2], [-1.0, -1.0]]},
        ),
        [[A_TWO_6 - 0.005 * 0.2] * 2, [-A_TWO_6] * 2],
    ),
    # six wordings of two samples each: of the first 1 and 0, of deviation sqrt(1/2); the others are alike in themselves
    "ps-grpo": (
        Step(reward=(1, 0, *[0.5] * 10), lengths=[1] * 12),
        [[A_TWO_6], [-A_TWO_6], *[[0.0]] * 10],
    ),
    # 0.75 at 50 of 100 nats from the reference is 0.375, 0.5 at none is 0.5; of a mean of 0.4375
    "cgpo": (
        Step(
            reward=(0.75, 0.5),
            old_logprob=((-1.0, -1.0), (-1.0, -1.0)),
            values={of_view("reference"): [[-11.0, -41.0], [-1.0, -1.0]]},
        ),
        [[-0.0625] * 2, [0.0625] * 2],
    ),
}
