"""Log-ratios fitted to advantages, and the policy's word on itself to rewards: values and gradients by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.methods.credit.direct_advantage_policy_optimization import advantage_regression
from mmgrpo.methods.surrogates.laser import self_reward, self_rewarded
from mmgrpo.values import end_logprob
from tests.maths.decision_rows import decisions_at
from tests.maths.feedback_rows import feedback_of


def decisions_of(
    logprob: Sequence[Sequence[float]], reward: Sequence[float], *, segments: Sequence[Sequence[int]] | None = None
) -> tuple[Decisions, Tensor]:
    """Rows of one group, their old log-probabilities 0 and the advantages those of the reward; the token's too."""
    logprob_BT = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    shape = logprob_BT.shape
    reward_BT = torch.tensor(reward, dtype=torch.float64)[:, None].expand(shape)
    rows = decisions_at(
        logprob_BT,
        old_logprob_BT=torch.zeros(shape, dtype=torch.float64),
        advantage_BT=reward_BT,
        segment_BT=torch.zeros(shape, dtype=torch.long) if segments is None else torch.tensor(segments),
        reward_BT=reward_BT,
        group_BT=torch.zeros(shape, dtype=torch.long),
        values={end_logprob(7): logprob_BT},
    )
    return rows, logprob_BT


def test_each_segment_is_fitted_to_its_advantage() -> None:
    rows, logprob_BT = decisions_of([[0.3, 0.1, 0.2]], [1.0], segments=[[5, 5, 9]])
    loss = advantage_regression(beta=2.0).loss(rows)
    # 0.4 - 2 / 2 = -0.6 and 0.2 - 1 / 2 = -0.3: (0.36 + 0.09) / 2
    assert loss.value.item() == pytest.approx(0.225)
    (gradient_BT,) = torch.autograd.grad(loss.value, logprob_BT)
    torch.testing.assert_close(gradient_BT, torch.tensor([[-0.6, -0.6, -0.3]], dtype=torch.float64))
    with pytest.raises(ConfigError, match="beta, by which advantages are divided, must be above 0, got 0"):
        advantage_regression(beta=0)


def test_self_rewards_are_fitted_to_the_rewards() -> None:
    # LaSeR's loss at log-probabilities -23 and -33 and a constant of -23.5: (0.05 - 1)^2 = 0.9025 for the right one
    rows, logprob_BT = decisions_of([[-23.0], [-33.5], [-23.5], [0.0]], [1.0, 0.0, 0.0, 1.0])
    loss = self_reward(token=7, scale=0.1, anchor=-23.5).loss(rows)
    # of three that ended the right one weighs 3 / 2, the wrong ones, -1 and 0 away, 3 / 4; the fourth is 0 of four
    assert loss.value.item() == pytest.approx((1.5 * 0.9025 + 0.75 * 1.0) / 4)
    (gradient_BT,) = torch.autograd.grad(loss.value, logprob_BT)
    # 2 w 0.1 error / 4
    expected = torch.tensor([[1.5 * -0.95], [0.75 * -1.0], [0.0], [0.0]], dtype=torch.float64) * 0.05
    torch.testing.assert_close(gradient_BT, expected)
    assert loss.diagnostics.value_sums["self_reward"].count == 3


@pytest.mark.parametrize(("step", "least"), [(199, 0.1), (200, 0.8)])
def test_advantages_keep_before_the_start_and_for_equal_self_rewards(step: int, least: float) -> None:
    end_logprob_BT = torch.tensor([[0.0, -14.0], [0.0, -23.0]])
    feedback = feedback_of([1.0, 0.0], [0, 0], mask=[[1, 1]] * 2, values={end_logprob(7): end_logprob_BT}, step=step)
    advantage_BT = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    result_BT = self_rewarded(token=7, least=least, start=200).assign(feedback, advantage_BT)
    torch.testing.assert_close(result_BT, advantage_BT)
