"""GFPO: numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.methods.selection.gfpo import among_most_efficient
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# of ten the eight shortest: four of them right, so 0.5 / (0.5345225 + 1e-4)
CREDIT = (
    Step(reward=(1, 0, 1, 0, 1, 0, 1, 0, 1, 1), lengths=range(1, 11)),
    [*[[0.935239] * 10, [-0.935239] * 10] * 4, [0.0] * 10, [0.0] * 10],
)


def test_advantages_of_the_method() -> None:
    assert_credit("gfpo", *CREDIT)


def test_equal_rewards_earn_exactly_nothing() -> None:
    """The mean of three 0.1 is no 0.1 in floating point."""
    feedback = feedback_of([0.1] * 3, [0] * 3)
    assert among_most_efficient(count=3).assign(feedback, torch.ones(3, 3)).tolist() == [[0.0] * 3] * 3
