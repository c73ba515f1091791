"""CGPO (calibrated regularised policy gradient): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import of_view
from tests.configs.method_steps import Step, assert_credit

# 0.75 at 50 of 100 nats from the reference is 0.375, 0.5 at none is 0.5; of a mean of 0.4375
CREDIT = (
    Step(
        reward=(0.75, 0.5),
        old_logprob=((-1.0, -1.0), (-1.0, -1.0)),
        values={of_view("reference"): [[-11.0, -41.0], [-1.0, -1.0]]},
    ),
    [[-0.0625] * 2, [0.0625] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("cgpo", *CREDIT)
