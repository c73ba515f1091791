"""Weights that unlearn samples: these become less likely, and the trained weights stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.distributed.job import Job
from mmgrpo.maths.forgetting import FORGETTING, Forgetting
from mmgrpo.policy import Policy
from mmgrpo.training.rollout_rounds import keep_forgetting
from mmgrpo.types import Rollout
from tests.policies.tiny_language import measured_policy_of, prompts_of


def logprobs(policy: Policy, rollout: Rollout) -> Tensor:
    result_BT = torch.zeros(rollout.shape)
    with torch.no_grad():
        for part in policy.evaluate(rollout):
            assert part.rows is not None
            result_BT[part.rows[:, None], torch.tensor(part.columns)] = part.logprob_BT
    return result_BT


@pytest.mark.parametrize(("settings", "below"), [({}, 99.0), ({"lora": None}, 99.0), ({}, 0.0)])
def test_sampled_answers_are_less_likely_where_the_policy_is_certain(settings: dict[str, Any], below: float) -> None:
    policy = measured_policy_of("llama", max_new_tokens=5, **settings)
    rollout = policy.rollout(prompts_of("llama"), group_size=3, seed=0)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    current_BT = logprobs(policy, rollout)
    how = Forgetting(rate=0.05, below=below, limit=1e-4)
    assert keep_forgetting(policy, [rollout], how, Job(Accelerator(cpu=True))) == len(rollout.samples)
    for now, then in zip(policy.trainable, before, strict=True):
        assert torch.equal(now, then)
        assert now.grad is None
    assert torch.equal(logprobs(policy, rollout), current_BT)
    with policy.weights.using(FORGETTING):
        moved_BT = logprobs(policy, rollout)
    if below:
        loss = (-torch.log1p(-current_BT.exp())).where(rollout.mask_BT, 0.0).sum()
        assert float((-torch.log1p(-moved_BT.exp())).where(rollout.mask_BT, 0.0).sum()) < float(loss) - 1e-6
    else:
        torch.testing.assert_close(moved_BT, current_BT, rtol=0, atol=1e-6)
