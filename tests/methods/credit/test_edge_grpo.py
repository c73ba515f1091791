"""EDGE-GRPO (entropy-driven advantage): numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.methods.credit.edge_grpo import inverse_entropy
from mmgrpo.values import ENTROPY
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# mean entropies 0.5 and 1.5 of mean 1: times 2 and 2 / 3
CREDIT = (
    Step(reward=ONE_OF_TWO, entropy=((0.25, 0.75), (1.0, 2.0))),
    [[2 * A_TWO] * 2, [-A_TWO / 1.5] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("edge-grpo", *CREDIT)


def test_a_sample_alone_keeps_its_advantage() -> None:
    feedback = feedback_of([1.0], [0], values={ENTROPY: torch.full((1, 3), 0.5)})
    assert inverse_entropy().assign(feedback, torch.ones(1, 3)).tolist() == [[1.0] * 3]
