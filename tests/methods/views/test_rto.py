"""RTO (reinforced token optimization): numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.methods.views.rto import returns_in_view
from mmgrpo.values import of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# 0.05 (0.4, -2) held at -0.05 is 0.02, -0.05, so -0.03 and -0.05 to come; the other's 0, -0.025 is -0.025 twice;
# less their means of -0.0275 and -0.0375. Of the other the first token is e times likelier than the reference finds
# it: -0.01 there, of a mean of -0.005
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-1.0, -1.0), (0.0, -1.0)),
        values={
            of_view("preferred"): [[-0.6, -3.0], [-1.0, -1.5]],
            of_view("reference"): [[-1.0, -1.0], [-1.0, -1.0]],
        },
    ),
    [[0.5 - 0.0025 + 0.005, 0.5 - 0.0125], [-0.5 + 0.0025 - 0.005, -0.5 + 0.0125]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rto", *CREDIT)


def test_samples_without_a_reward_are_in_no_mean() -> None:
    view = {of_view("preferred"): torch.tensor([[-0.5], [-0.1], [-0.7]])}
    rows = {"old_logprob": [[-1.0]] * 3, "valid": [True, False, True], "values": view}
    advantage_BT = returns_in_view(view="preferred").assign(
        feedback_of([1.0, 0.0, 0.0], [0] * 3, **rows), torch.ones(3, 1)
    )
    assert advantage_BT.flatten().tolist() == pytest.approx([1.1, 1.0, 0.9])  # 0.5 and 0.3, of mean 0.4
