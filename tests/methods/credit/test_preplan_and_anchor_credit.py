"""Preplan-and-Anchor credit: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import attention_distance, attention_influence
from tests.configs.method_steps import Step, assert_credit
from tests.configs.pins.rows import A_TWO, ONE_OF_TWO

# looked at 5, 1, 1, 6 and 0, so that the first and the fourth are anchors, at least the 0.6 quantile of 2.6; the
# fourth looks no further back than the median of 3, and of the changes 5, 7, 1 before it the second's is at least
# the median of 2: the fourth gives half of its 0.5 to it
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        lengths=(5, 5),
        values={
            attention_distance(10): [[4.0, 9.0, 2.0, 1.0, 3.0]] * 2,
            attention_influence(10, 50): [[5.0, 1.0, 1.0, 6.0, 0.0]] * 2,
        },
    ),
    [[1.5 * A_TWO, 1.25 * A_TWO, A_TWO, 1.25 * A_TWO, A_TWO], [-A_TWO] * 5],
)


def test_advantages_of_the_method() -> None:
    assert_credit("preplan-and-anchor-credit", *CREDIT)
