"""DR-IRL (dynamic reward scaling): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO
from tests.configs.method_steps import Step, assert_credit

PAIRS = (1.0, 0.0, 1.0, 0.0)
# d = 1 and 0, of a mean of 0.5, where all gaps are near their mean: 0.7310586 / 0.6224593 and 0.5 / 0.6224593
CREDIT = (
    Step(
        reward=PAIRS,
        groups=(0, 0, 1, 1),
        lengths=[1] * 4,
        columns={"difficulty": (1.1744680, 1.1744680, 0.8032653, 0.8032653)},
    ),
    [[1.1744680 * A_TWO], [-1.1744680 * A_TWO], [0.8032653 * A_TWO], [-0.8032653 * A_TWO]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("dr-irl", *CREDIT)
