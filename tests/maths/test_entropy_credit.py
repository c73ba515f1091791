"""Credit by entropy: values by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.entropy_credit import entropy_weights, inverse_entropy, zero_variance_entropy
from mmgrpo.values import ENTROPY
from tests.maths.feedback_rows import feedback_of


def test_surer_samples_count_more():
    # mean entropies 0.5 and 1.5, their mean 1: factors 2 and 2/3 (EDGE-GRPO)
    entropy_BT = torch.tensor([[0.25, 0.75, torch.nan], [1.0, 1.5, 2.0]])
    feedback = feedback_of([1, 0], [0, 0], mask=[[1, 1, 0], [1, 1, 1]], values={ENTROPY: entropy_BT})
    advantage_BT = torch.tensor([[3.0], [-3.0]]).expand(2, 3)
    found_BT = inverse_entropy().assign(feedback, advantage_BT)
    torch.testing.assert_close(found_BT, torch.tensor([[6.0] * 3, [-2.0] * 3]))


def test_equal_entropies_change_nothing_to_the_bit():
    advantage_BT = torch.randn(4, 3)
    for level in (0.0, 0.7):
        feedback = feedback_of([1, 0, 1, 0], [0, 0, 1, 1], values={ENTROPY: torch.full((4, 3), level)})
        assert torch.equal(inverse_entropy().assign(feedback, advantage_BT), advantage_BT)


def test_equal_rewards_teach_by_entropy():
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
    found_BT = zero_variance_entropy(alpha=0.1).assign(feedback, torch.zeros(3, 3))
    torch.testing.assert_close(found_BT, torch.tensor([[0.1] * 3, [0.1] * 3, [0.0] * 3]))


def test_decisions_of_high_advantage_and_entropy_count_more():
    # place 0: e^(1 + 0.5) against e^(-1 + 1.5), 0.731059 and 0.268941 of 2; place 1: one member alone, weight 1
    entropy_BT = torch.tensor([[0.5, 9.0], [1.5, torch.nan]])
    feedback = feedback_of([1, 0], [0, 0], mask=[[1, 1], [1, 0]], values={ENTROPY: entropy_BT})
    advantage_BT = torch.tensor([[1.0], [-1.0]]).expand(2, 2)
    found_BT = entropy_weights(alpha=1.0, temperature=1.0).assign(feedback, advantage_BT)
    torch.testing.assert_close(found_BT, torch.tensor([[1.462117, 1.0], [-0.537883, 0.0]]))
    with pytest.raises(ConfigError, match="temperature > 0"):
        entropy_weights(alpha=1.0, temperature=0.0)


def test_groups_weigh_for_themselves():
    entropy_BT = torch.tensor([[0.5], [3.0], [0.5]])
    feedback = feedback_of([1, 1, 1], [0, 1, 0], mask=[[1], [1], [1]], values={ENTROPY: entropy_BT})
    found_BT = entropy_weights(alpha=1.0, temperature=1.0).assign(feedback, torch.ones(3, 1))
    torch.testing.assert_close(found_BT, torch.ones(3, 1))
