"""The cost of length in the groups with the highest pass rates, by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.credit.grpo_lambda import short_where_solved
from tests.maths.feedback_rows import feedback_of


def test_length_costs_in_the_groups_that_are_right_most_often():
    # group 0 is all right, of 1, 2 and 3 decisions: z -1, 0, 1, so 1 - 0.5 / (1 + e^-z) = 0.865529, 0.75, 0.634471
    # of deviation 0.115529; group 1 is right once and keeps what it had
    mask = [[1, 0, 0], [1, 1, 0], [1, 1, 1], *[[1, 1, 1]] * 3]
    feedback = feedback_of([1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1], mask=mask)
    advantage_BT = torch.tensor([[0.0], [0.0], [0.0], [2.0], [-1.0], [-1.0]], dtype=torch.float64).expand(6, 3)
    result_BT = short_where_solved(share=0.5, strength=0.5, eps=0.0).assign(feedback, advantage_BT)
    expected = torch.tensor([[1.0], [0.0], [-1.0], [2.0], [-1.0], [-1.0]], dtype=torch.float64).expand(6, 3)
    torch.testing.assert_close(result_BT, expected)


def test_wrong_samples_keep_their_advantage():
    # right ones of 1 and 3 decisions: z = -+0.707107, losses 0.165118 and 0.334882 of 0.5
    feedback = feedback_of([1, 1, 0], [0, 0, 0], mask=[[1, 0, 0], [1, 1, 1], [1, 1, 1]])
    result_BT = short_where_solved(share=1.0, strength=0.5, eps=0.0).assign(feedback, torch.zeros(3, 3))
    reward_B = torch.tensor([0.834882, 0.665118, 0.0])
    expected_B = (reward_B - reward_B.mean()) / reward_B.std()
    torch.testing.assert_close(result_BT[:, 0], expected_B, atol=1e-5, rtol=0)


def test_a_share_of_zero_keeps_advantages():
    advantage_BT = torch.tensor([[0.3], [-0.3]])
    feedback = feedback_of([1, 1], [0, 0], mask=[[1], [1]])
    assert torch.equal(short_where_solved(share=0.0, strength=0.5).assign(feedback, advantage_BT), advantage_BT)
    with pytest.raises(ConfigError, match="0 <= share <= 1"):
        short_where_solved(share=1.5, strength=0.5)
