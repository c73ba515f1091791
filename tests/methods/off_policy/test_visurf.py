"""ViSurf: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.methods.off_policy.visurf import label_smoothing
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# the label's 1 becomes the mean 0.5 of the others: mean 0.5, deviation sqrt(1 / 4)
CREDIT = (
    Step(reward=(1, 0, 1, 0, 1), lengths=[1] * 5, sources=(0, 0, 0, 0, 2)),
    [[0.5 / 0.5001], [-0.5 / 0.5001]] * 2 + [[0.0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("visurf", *CREDIT)


def test_a_group_of_one_gets_zeros() -> None:
    feedback = feedback_of([1.0, 0.5], [0, 1])
    assert label_smoothing().assign(feedback, torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2


def test_a_demonstration_that_the_only_sample_reaches_gets_its_reward() -> None:
    feedback = replace(feedback_of([0.5, 0.5], [0, 0]), source_B=torch.tensor([0, 2]))
    assert label_smoothing().assign(feedback, torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2
