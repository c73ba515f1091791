"""MixGRPO: numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.types import Scores
from tests.configs.denoising_steps import GROUP_STD, assert_advantages, assert_clamped_to_five, assert_loss
from tests.configs.method_steps import config_of
from tests.uniform import credit_of

LOSS = 0.0056207227


def test_loss_of_the_method() -> None:
    assert_loss("mix-grpo", LOSS)


def test_advantages_of_the_method() -> None:
    assert_advantages("mix-grpo", GROUP_STD)


def test_advantages_are_clamped() -> None:
    assert_clamped_to_five("mix-grpo")


def test_rewards_are_normalized_and_added_without_another_scale() -> None:
    config = config_of("mix-grpo").advantage
    # of the group (0, 0, 1, 1) the second reward is (6, 4, 4, 6), at half the weight: sample std 0.57735 and 1.154701
    value_BR = torch.tensor([[0.0, 6.0], [0.0, 4.0], [1.0, 4.0], [1.0, 6.0]])
    scores = Scores(
        names=("a", "b"), weight_R=torch.tensor([1.0, 0.5]), value_BR=value_BR, valid_BR=value_BR.bool() | True
    )
    unit, half = 0.8660254, 0.4330127
    expected_B = torch.tensor([-unit + half, -unit - half, unit - half, unit + half])
    torch.testing.assert_close(credit_of(scores, 4, config).advantage_B, expected_B)
