"""PRL (process reward learning): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import of_view
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# both decisions are of one step, whose last is 0.2 likelier than the reference finds it; of the other none is
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-1.0, -1.0), (-1.0, -1.0)),
        values={of_view("reference"): [[-3.0, -1.2], [-1.0, -1.0]]},
    ),
    [[A_TWO_6 - 0.005 * 0.2] * 2, [-A_TWO_6] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("prl", *CREDIT)
