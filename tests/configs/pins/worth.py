"""What a prompt weighs by a number of its row."""

from __future__ import annotations

from collections.abc import Sequence

from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, A_TWO_6

PAIRS = (1.0, 0.0, 1.0, 0.0)

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # the highest r-score weighs 2 in the first half of the run, one a fifth down 2 - 1.5 / 5
    "re-schedule": (
        Step(reward=PAIRS, groups=(0, 0, 1, 1), lengths=[1] * 4, columns={"rank": (0.0, 0.0, 0.2, 0.2)}),
        [[2 * A_TWO_6], [-2 * A_TWO_6], [1.7 * A_TWO_6], [-1.7 * A_TWO_6]],
    ),
    # d = 1 and 0, of a mean of 0.5, where all gaps are near their mean: 0.7310586 / 0.6224593 and 0.5 / 0.6224593
    "dr-irl": (
        Step(
            reward=PAIRS,
            groups=(0, 0, 1, 1),
            lengths=[1] * 4,
            columns={"difficulty": (1.1744680, 1.1744680, 0.8032653, 0.8032653)},
        ),
        [[1.1744680 * A_TWO], [-1.1744680 * A_TWO], [0.8032653 * A_TWO], [-0.8032653 * A_TWO]],
    ),
}
