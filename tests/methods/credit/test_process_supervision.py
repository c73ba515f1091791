"""GRPO with process supervision: numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.maths.feedback import Scoped
from mmgrpo.methods.credit.process_supervision import process_supervision
from tests.configs.method_rows import A_FOUR
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# z = 1.499700 of the one step that is right, -0.499900 of the others, summed to the end
CREDIT = (
    Step(reward=(0, 0), parts=((1, 0), (0, 0))),
    [[A_FOUR - A_FOUR / 3, -A_FOUR / 3], [-2 * A_FOUR / 3, -A_FOUR / 3]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("process-supervision", *CREDIT)


def test_a_single_step_has_no_spread() -> None:
    scores = Scoped(
        scope_BT=torch.zeros(1, 3, dtype=torch.long),
        value_BS=torch.ones(1, 1),
        valid_BS=torch.ones(1, 1, dtype=torch.bool),
    )
    feedback = feedback_of([1.0], [0], scoped={"steps": scores})
    assert process_supervision(reward="steps").assign(feedback, torch.ones(1, 3)).tolist() == [[1.0] * 3]
