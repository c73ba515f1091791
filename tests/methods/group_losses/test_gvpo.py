"""GVPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.maths.decisions import Decisions
from mmgrpo.methods.group_losses.gvpo import gvpo
from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss


def on_policy(rewards: list[float]) -> Decisions:
    """One group of these rewards, each row of one decision at a log-ratio of 0."""
    reward_B1 = torch.tensor(rewards)[:, None]
    zero_B1 = torch.zeros_like(reward_B1)
    return Decisions(
        logprob_BT=zero_B1,
        old_logprob_BT=zero_B1,
        advantage_BT=zero_B1,
        mask_BT=torch.ones_like(zero_B1).bool(),
        weight_BT=zero_B1,
        segment_BT=zero_B1.long(),
        reward_BT=reward_B1,
        group_BT=zero_B1.long(),
    )


# d - mean d = 0.4, -0.3, 0, -0.1; r - mean r = 0.75, -0.25: (0.71^2 + 0.22^2 + 0.25^2 + 0.24^2) / 6
LOSS = (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), 0.1121)


def test_loss_of_the_method() -> None:
    assert_loss("gvpo", *LOSS)


def test_the_error_is_over_twice_the_other_members() -> None:
    """Rewards 2/3, -1/3 and -1/3 around their mean: (4 + 1 + 1) / 9 over 2 (3 - 1)."""
    assert float(gvpo().loss(on_policy([1.0, 0.0, 0.0])).value) == pytest.approx(1 / 6)
