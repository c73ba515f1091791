"""DVPO (decoupled value policy optimization): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import VALUE
from tests.configs.method_steps import Step, assert_credit

# the value of the next state, and the reward after the last token
CREDIT = (
    Step(reward=(1.0, 0.0), groups=(0, 1), values={VALUE: [[0.5, 0.6], [0.5, 0.4]]}),
    [[0.6, 1.0], [0.4, 0.0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("dvpo", *CREDIT)
