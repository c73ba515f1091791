"""DAPO (direct advantage policy optimization): numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.methods.credit.direct_advantage_policy_optimization import advantage_regression
from mmgrpo.values import VALUE
from tests.configs.method_steps import Step, assert_loss
from tests.maths.decision_rows import decisions_at

# better by 0.1 + 0.4 and -0.1 - 0.4 than expected, log-ratios 0.4 and 0: ((0.4 - 0.5)^2 + (0 + 0.5)^2) / 2 over two
LOSS = (
    Step(
        reward=(1.0, 0.0),
        groups=(0, 1),
        log_ratio=((0.3, 0.1), (0.0, 0.0)),
        values={VALUE: [[0.5, 0.6], [0.5, 0.4]]},
    ),
    0.065,
)


def test_loss_of_the_method() -> None:
    assert_loss("direct-advantage-policy-optimization", *LOSS)


def test_the_weight_of_a_masked_decision_does_not_matter() -> None:
    """A log-ratio of 0.5 less an advantage of 1, in a segment of one decision: 0.5^2 / 2 = 0.125."""
    nan = float("nan")
    decisions = decisions_at(
        torch.tensor([[-0.5, nan]]),
        old_logprob_BT=torch.tensor([[-1.0, nan]]),
        advantage_BT=torch.tensor([[1.0, nan]]),
        mask_BT=torch.tensor([[True, False]]),
        weight_BT=torch.tensor([[1.0, nan]]),
    )
    assert float(advantage_regression(beta=1.0).loss(decisions).value) == 0.125
