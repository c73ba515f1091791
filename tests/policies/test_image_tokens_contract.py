"""The laws of a policy on tiny models of image tokens, guided: Janus daily, all nightly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.image_tokens import ImageTokensPolicy

from mmgrpo.types import Plan, Source
from tests.policies.contract import Subject, values
from tests.policies.families import Law, families, laws
from tests.policies.tiny_image_tokens import parameters_of, policy_of, prompts_of
from tests.tiny.image_tokens import FAMILIES

FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}}
GAP = 4e-6  # guidance of 3 adds up five times what a logit rounds


def subject(name: str, settings: dict[str, Any]) -> Subject:
    return Subject(
        make=lambda batch: policy_of(name, batch=batch, **settings),
        parameters=parameters_of,
        prompts=prompts_of(),
        gap=GAP,
        rounding=8e-6,
    )


@pytest.mark.first_case
@pytest.mark.parametrize("name", families("image_tokens", FAMILIES))
@laws(full=FULL, lora=LORA)
def test_the_laws(name: str, law: Law, settings: dict[str, Any]) -> None:
    law(subject(name, settings))


@pytest.mark.parametrize("name", families("image_tokens", FAMILIES))
def test_a_replayed_window_trains_the_codes_that_were_sampled(name: str) -> None:
    replay = subject(name, FULL)
    policy = replay.make(replay.rows)
    assert isinstance(policy, ImageTokensPolicy)
    rollout = replay.rollout(policy, Plan(stochastic=(1, 3), settings={"temperature": 2.0, "guidance_scale": 2.0}))
    read = policy.read([rollout.off_policy_sample(row, Source.REPLAY) for row in range(replay.rows)], seed=0)
    assert read.mask_BT.sum(1).tolist() == [2] * replay.rows
    assert torch.equal(read.mask_BT, rollout.mask_BT)
    gap_BT = (values(policy, read) - rollout.old_logprob_BT)[rollout.mask_BT]
    assert gap_BT.exp().tolist() == pytest.approx([1.0] * len(gap_BT), abs=1e-4)
