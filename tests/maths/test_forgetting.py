"""The loss that makes sampled decisions less likely, by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.forgetting import FORGETTING, forgetting_loss
from mmgrpo.maths.strategies import Round, Setting
from mmgrpo.methods.strategies.eepo import unlearn_between_halves
from tests.maths.round_rows import round_of


def test_likely_decisions_lose_most_and_certain_ones_are_clamped() -> None:
    logprob_BT = torch.tensor([[log(0.5), log(0.9), 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    mask_BT = torch.tensor([[True, True, True, False]])
    loss_BT = forgetting_loss(logprob_BT, mask_BT, limit=0.01)
    expected = torch.tensor([[-log(0.5), -log(0.1), -log(0.01), 0.0]], dtype=torch.float64)
    torch.testing.assert_close(loss_BT, expected)
    (gradient_BT,) = torch.autograd.grad(loss_BT.sum(), logprob_BT)
    # p / (1 - p), and nothing where p is held
    torch.testing.assert_close(gradient_BT, torch.tensor([[1.0, 9.0, 0.0, 0.0]], dtype=torch.float64))


def test_the_second_half_is_sampled_by_weights_that_unlearned_the_first() -> None:
    strategy, setting = unlearn_between_halves(), Setting(step=0, num_prompts=2, group_size=5)
    rounds: list[Round] = []
    for members, weights in (((0, 1), None), ((2, 3, 4), FORGETTING)):
        requests = strategy.ask(rounds, setting)
        assert [(request.prompt, request.members, request.weights) for request in requests] == [
            (prompt, members, weights) for prompt in range(2)
        ]
        rounds.append(round_of(requests, [0.0] * 2 * len(members)))
    assert strategy.ask(rounds, setting) == ()
    with pytest.raises(ConfigError, match=r"raise rollout\.group_size to 2 or more"):
        strategy.ask([], Setting(step=0, num_prompts=1, group_size=1))
    with pytest.raises(ConfigError, match="a rate above 0"):
        unlearn_between_halves(rate=0.0)
