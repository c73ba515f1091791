"""Credit by entropy: values by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.credit.edge_grpo import inverse_entropy
from mmgrpo.methods.credit.egsw import entropy_weights
from mmgrpo.methods.credit.gtpo_token_sequence import entropy_rewards, whitened_by_sign
from mmgrpo.methods.credit.rl_zvp import zero_variance_entropy
from mmgrpo.values import ENTROPY
from tests.maths.feedback_rows import feedback_of


def test_surer_samples_count_more():
    # mean entropies 0.5 and 1.5, their mean 1: factors 2 and 2/3 (EDGE-GRPO)
    entropy_BT = torch.tensor([[0.25, 0.75, torch.nan], [1.0, 1.5, 2.0]])
    feedback = feedback_of([1, 0], [0, 0], mask=[[1, 1, 0], [1, 1, 1]], values={ENTROPY: entropy_BT})
    advantage_BT = torch.tensor([[3.0], [-3.0]]).expand(2, 3)
    result_BT = inverse_entropy().assign(feedback, advantage_BT)
    torch.testing.assert_close(result_BT, torch.tensor([[6.0] * 3, [-2.0] * 3]))


def test_equal_entropies_keep_advantages_bitwise():
    advantage_BT = torch.randn(4, 3)
    for level in (0.0, 0.7):
        feedback = feedback_of([1, 0, 1, 0], [0, 0, 1, 1], values={ENTROPY: torch.full((4, 3), level)})
        assert torch.equal(inverse_entropy().assign(feedback, advantage_BT), advantage_BT)


def test_equal_rewards_train_by_entropy():
    # H 0.2, 1.0, 0.5: right 0.02, 0.1, 0.05; wrong 0.1 (H - 1): -0.08, 0, -0.05 (RL-ZVP); the mixed group keeps A
    entropy_BT = torch.tensor([[0.2, 1.0, 0.5]]).repeat(6, 1)
    entropy_BT[1, 2] = torch.nan
    mask = [[1, 1, 1], [1, 1, 0], *[[1, 1, 1]] * 4]
    feedback = feedback_of([1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 2, 2], mask=mask, values={ENTROPY: entropy_BT})
    advantage_BT = torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0], [-1.0]]).expand(6, 3)
    right, wrong = [0.02, 0.1, 0.05], [-0.08, 0.0, -0.05]
    expected = [right, [0.02, 0.1, 0.0], wrong, wrong, [1.0] * 3, [-1.0] * 3]
    torch.testing.assert_close(zero_variance_entropy(alpha=0.1).assign(feedback, advantage_BT), torch.tensor(expected))


def test_a_member_without_a_reward_keeps_its_advantage():
    entropy_BT = torch.ones(3, 3)
    feedback = feedback_of([1, 1, float("nan")], [0, 0, 0], valid=[True, True, False], values={ENTROPY: entropy_BT})
    result_BT = zero_variance_entropy(alpha=0.1).assign(feedback, torch.zeros(3, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.1] * 3, [0.1] * 3, [0.0] * 3]))


def test_decisions_of_high_advantage_and_entropy_count_more():
    # place 0: e^(1 + 0.5) against e^(-1 + 1.5), 0.731059 and 0.268941 of 2; place 1: one member alone, weight 1
    entropy_BT = torch.tensor([[0.5, 9.0], [1.5, torch.nan]])
    feedback = feedback_of([1, 0], [0, 0], mask=[[1, 1], [1, 0]], values={ENTROPY: entropy_BT})
    advantage_BT = torch.tensor([[1.0], [-1.0]]).expand(2, 2)
    result_BT = entropy_weights(alpha=1.0, temperature=1.0).assign(feedback, advantage_BT)
    torch.testing.assert_close(result_BT, torch.tensor([[1.462117, 1.0], [-0.537883, 0.0]]))
    with pytest.raises(ConfigError, match="temperature > 0"):
        entropy_weights(alpha=1.0, temperature=0.0)


def test_groups_weigh_for_themselves():
    entropy_BT = torch.tensor([[0.5], [3.0], [0.5]])
    feedback = feedback_of([1, 1, 1], [0, 1, 0], mask=[[1], [1], [1]], values={ENTROPY: entropy_BT})
    result_BT = entropy_weights(alpha=1.0, temperature=1.0).assign(feedback, torch.ones(3, 1))
    torch.testing.assert_close(result_BT, torch.ones(3, 1))


def test_right_decisions_earn_by_entropy_and_wrong_ones_pay_by_sureness():
    # the numbers that the reproduction textpolicy tests: 1 + 0.1 * 2 * 3 / 4 = 1.15 and 1.05, and -1.04 and -1.16, as
    # -1 - 0.1 * 2 * 0.25 / 1.25; of a member alone at its place -1 - 0.1
    entropy_BT = torch.tensor([[3.0, 1.0, 9.0], [1.0, 3.0, 9.0], [4.0, 1.0, 2.0], [1.0, 4.0, 9.0]])
    mask = [[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0]]
    feedback = feedback_of([1, 1, 0, 0], [0] * 4, mask=mask, values={ENTROPY: entropy_BT})
    result_BT = entropy_rewards().assign(feedback, torch.ones(4, 3))
    expected = [[1.15, 1.05, 0.0], [1.05, 1.15, 0.0], [-1.04, -1.16, -1.1], [-1.16, -1.04, 0.0]]
    torch.testing.assert_close(result_BT, torch.tensor(expected), atol=1e-4, rtol=0)
    # of the right ones the mean is 1.1, of deviation 0.05 sqrt(4 / 3)
    whitened_BT = whitened_by_sign().assign(feedback, result_BT)
    torch.testing.assert_close(whitened_BT[0], torch.tensor([0.866025, -0.866025, 0.0]), atol=1e-4, rtol=0)
    assert abs(float(whitened_BT[2:].sum())) < 1e-5


def test_samples_without_a_reward_are_neither_right_nor_wrong():
    feedback = feedback_of([1, 0], [0, 0], valid=[True, False], values={ENTROPY: torch.ones(2, 3)})
    torch.testing.assert_close(
        entropy_rewards().assign(feedback, torch.ones(2, 3)), torch.tensor([[1.1] * 3, [0.0] * 3]), atol=1e-6, rtol=0
    )


def test_each_sign_is_standardized_separately():
    # 1, 1.2, 0.8 of deviation 0.2 and the same below 0; a 0 and a masked decision stay out
    feedback = feedback_of([1, 0], [0, 0], mask=[[1, 1, 1, 1], [1, 1, 1, 0]])
    advantage_BT = torch.tensor([[1.0, 1.2, 0.8, 0.0], [-1.0, -1.2, -0.8, -7.0]])
    result_BT = whitened_by_sign().assign(feedback, advantage_BT)
    torch.testing.assert_close(result_BT, torch.tensor([[0.0, 1.0, -1.0, 0.0], [0.0, -1.0, 1.0, 0.0]]))
