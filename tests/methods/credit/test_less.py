"""LESS (low-entropy segments): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO_6
from tests.configs.method_steps import Step, assert_credit

LOW_BUT_TWO = [0.1] * 6 + [1.0, 2.0]
ALIKE, OTHER, ANOTHER = (list(range(start, start + 8)) for start in (1, 11, 21))
A_TREE_6 = 0.5 / 0.5773513  # rewards 1, 1, 0, 0; eps 1e-6
# the limit is the seventh entropy of eight. Two right ones share their six sure tokens, 2 / 2; the wrong ones share
# nothing, 1 / 2; in the second group the right and the wrong one share them: 0. The eighth token keeps A
CREDIT = (
    Step(
        reward=(1, 1, 0, 0, 1, 0),
        groups=(0, 0, 0, 0, 1, 1),
        tokens=[ALIKE, ALIKE, OTHER, ANOTHER, ALIKE, ALIKE],
        entropy=[LOW_BUT_TWO] * 6,
    ),
    [
        *[[A_TREE_6] * 6 + [A_TREE_6 / 2, A_TREE_6]] * 2,
        *[[-A_TREE_6 / 2] * 7 + [-A_TREE_6]] * 2,
        [0.0] * 6 + [A_TWO_6] * 2,
        [0.0] * 6 + [-A_TWO_6] * 2,
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("less", *CREDIT)
