"""What regressions make of a few rows."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.values import VALUE, end_logprob
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO_6, ONE_OF_TWO

SAID = end_logprob(151652)

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # at the step 200: 0.1 (-14 + 23) = 0.9 and 0, of mean 0.45 and sample deviation 0.6363961: 0.7071068 and minus that
    "laser": (
        Step(reward=ONE_OF_TWO, number=200, values={SAID: [[0.0, -14.0], [0.0, -23.0]]}),
        [[0.9 * A_TWO_6 + 0.0707107] * 2, [-0.9 * A_TWO_6 - 0.0707107] * 2],
    ),
}

LOSSES: dict[str, tuple[Step, float]] = {
    # the right one says 0 and the wrong one -0.5, each alone of its kind: 0.1 ((0 - 1)^2 + (-0.5 - 0)^2) / 2
    "laser": (Step(reward=ONE_OF_TWO, values={SAID: [[0.0, -23.0], [0.0, -28.0]]}), 0.0625),
    # better by 0.1 + 0.4 and -0.1 - 0.4 than expected, log-ratios 0.4 and 0: ((0.4 - 0.5)^2 + (0 + 0.5)^2) / 2 over two
    "direct-advantage-policy-optimization": (
        Step(
            reward=(1.0, 0.0),
            groups=(0, 1),
            log_ratio=((0.3, 0.1), (0.0, 0.0)),
            values={VALUE: [[0.5, 0.6], [0.5, 0.4]]},
        ),
        0.065,
    ),
}
