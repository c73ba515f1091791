"""LENS (likelihood estimation with negative samples): numbers worked out by hand."""

from __future__ import annotations

from math import log
from statistics import fmean, stdev

import pytest
import torch

from mmgrpo.methods.advantages.lens_waste_mistakes import confident_mistakes
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# p = 0.5 and 0.25 in both groups. Mixed: D = max(1 / mean(2, 0), 1) = 1, c = 1 and -0.25 / 0.75 / 2 = -1 / 6,
# 7 / 12 over 7 / 6 / sqrt 2 + 1e-4. All wrong: D = 1, c = -1 / 2 and -1 / 6, a quarter of -1 / 6 and 1 / 6
CREDIT = (
    Step(
        reward=(1, 0, 0, 0),
        groups=(0, 0, 1, 1),
        old_logprob=[[log(0.25), 0.0], [log(0.25), log(0.25)]] * 2,
    ),
    [[0.7070211] * 2, [-0.7070211] * 2, [-0.0416667] * 2, [0.0416667] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("lens--waste-mistakes", *CREDIT)


def test_penalties_of_a_group_that_earned_little() -> None:
    """p = 1/2, 1/4, 1/8: mean(r / p) = 1/6 and D = 6, so that p / (3 (D - p)) is 1/33, 1/69 and 1/141."""
    gains = [0.25 - 0.75 / 33, -1 / 69, -1 / 141]
    feedback = feedback_of([0.25, 0.0, 0.0], [0] * 3, old_logprob=[[log(p)] for p in (0.5, 0.25, 0.125)])
    advantage_B1 = confident_mistakes(eps=0.0).assign(feedback, torch.zeros(3, 1))
    expected = [(gain - fmean(gains)) / stdev(gains) for gain in gains]
    assert advantage_B1[:, 0].tolist() == pytest.approx(expected, rel=1e-5)
