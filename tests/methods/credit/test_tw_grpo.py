"""TW-GRPO (token-level weighted GRPO): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import PEERS
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# the second place is the farthest: 1.7
CREDIT = (
    Step(reward=ONE_OF_TWO, values={PEERS: [[1.0, 3.0], [1.0, 3.0]]}),
    [[A_TWO, 1.7 * A_TWO], [-A_TWO, -1.7 * A_TWO]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("tw-grpo", *CREDIT)
