"""AAPO: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.methods.advantages.aapo import column_margin
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# r - 1/4, and clip(r - 0, -0.2, 0.28) of a reference that is wrong
CREDIT = (
    Step(reward=ONE_OF_FOUR, lengths=[1] * 4, columns={"reference_reward": (0, 0, 0, 0)}),
    [[0.75 + 0.28], *[[-0.25]] * 3],
)


def test_advantages_of_the_method() -> None:
    assert_credit("aapo", *CREDIT)


def test_a_sample_without_a_reward_keeps_its_advantage() -> None:
    """Of the rewards 0.5 and 0.5 over a column of 0.25, the first adds 0.25; no reward applies to the second."""
    feedback = feedback_of([0.5, 0.5], [0, 0], valid=[True, False])
    feedback = replace(feedback, columns={"level": torch.full((2,), 0.25, dtype=torch.float64)})
    advantage_BT = column_margin(column="level").assign(feedback, torch.ones(2, 3))
    assert advantage_BT.tolist() == [[1.25] * 3, [1.0] * 3]
