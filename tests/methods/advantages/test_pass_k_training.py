"""Pass@k Training: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.advantages.pass_k_training import pass_at_k_advantage
from tests.configs.method_steps import Step, assert_credit

# R = 1 - C(6, 4) / C(8, 4) = 0.785714, s = 0.410326, W = C(5, 3) / C(7, 3) = 0.285714
CREDIT = (
    Step(reward=(1, 1, 0, 0, 0, 0, 0, 0), lengths=[1] * 8),
    [*[[0.522231]] * 2, *[[-0.174077]] * 6],
)


def test_advantages_of_the_method() -> None:
    assert_credit("pass-k-training", *CREDIT)


def test_fewer_wrong_samples_than_k_say_nothing() -> None:
    reward_PG = torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert pass_at_k_advantage(reward_PG, k=2).tolist() == [[0.0] * 4] * 2


def test_k_is_at_most_the_size_of_the_group() -> None:
    reward_PG = torch.tensor([[1.0, 0.0]])
    assert pass_at_k_advantage(reward_PG, k=2).tolist() == [[0.0, 0.0]]  # one wrong member is fewer than two
    for k in (0, 3):
        with pytest.raises(ConfigError, match="from 1 to the group size, 2"):
            pass_at_k_advantage(reward_PG, k=k)
