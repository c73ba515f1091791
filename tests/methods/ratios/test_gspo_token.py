"""GSPO-token: numbers of verl's code."""

from __future__ import annotations

import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.maths.aggregates import count
from tests.configs.method_steps import config_of
from tests.maths.decision_rows import decisions_at


def test_each_token_moves_by_its_own_advantage_at_the_ratio_of_the_sample() -> None:
    """The mean log-ratios are 1e-4, inside the bounds, and 7e-4, above them: there A = 1 has no gradient.

    A gradient is -A s / |o| / 2; compute_policy_loss_gspo of volcengine/verl returns these numbers.
    """
    objective = objective_of(config_of("gspo-token").objective)
    mask_BT = torch.tensor([[True, True, True], [True, True, False]])
    logprob_BT = torch.tensor([[5e-4, 1e-4, -3e-4], [1e-3, 4e-4, 0.0]], dtype=torch.float64, requires_grad=True)
    decisions = decisions_at(
        logprob_BT,
        old_logprob_BT=torch.zeros(2, 3, dtype=torch.float64),
        advantage_BT=torch.tensor([[1.0, -2.0, 0.5], [1.0, -1.0, 9.0]], dtype=torch.float64),
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, count(mask_BT)).double(),
    )
    value = objective(decisions).value
    (gradient_BT,) = torch.autograd.grad(value, logprob_BT)
    assert abs(float(value.detach()) - 0.08341672834764141) < 1e-8
    expected = torch.tensor(
        [[-0.16668333416669445, 0.3333666683333889, -0.08334166708334723], [0.0, 0.2501750612642942, 0.0]],
        dtype=torch.float64,
    )
    torch.testing.assert_close(gradient_BT, expected, rtol=0, atol=1e-8)
