"""The policy laws on tiny masked models, sampled and remasked, with full fine-tuning and LoRA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.masked import MaskedPolicy

from mmgrpo.errors import DataError
from mmgrpo.types import Example, OffPolicySample, Plan, Sample, Source
from tests.policies import contract
from tests.policies.contract import Subject
from tests.policies.families import Law, daily, families, laws
from tests.policies.tiny_masked import parameters_of, policy_of, prompts_of
from tests.tiny.masked_models import TINY

FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}}
GUIDED: dict[str, Any] = {"guidance_scale": 2.0, "decision": "reveal"}


def subject(name: str, **settings: Any) -> Subject:
    return Subject(
        make=lambda batch: policy_of(name, batch=batch, **settings),
        parameters=parameters_of,
        prompts=prompts_of(),
        gap=1e-6,
        rounding=4e-6,
        min_trained_frac=0.8,  # not reached: rows of the table of positions, and what reads what an image lacks
    )


every_family = pytest.mark.parametrize("name", families("masked", TINY))


@pytest.mark.first_case
@pytest.mark.each_value
@every_family
@laws(full=FULL, lora=LORA, guided=GUIDED)
def test_the_policy_laws(name: str, law: Law, settings: dict[str, Any]) -> None:
    law(subject(name, **settings))


@every_family
def test_on_policy_gap_is_zero_in_a_window(name: str) -> None:
    contract.check_on_policy_gap(subject(name, **GUIDED), Plan(stochastic=(1, 2)))


@pytest.mark.each_value
@every_family
@pytest.mark.parametrize("order", daily(["random", "confidence", "left_to_right"], "random", "confidence"))
@pytest.mark.parametrize(
    "settings", [{}, {"num_steps": 4}, {"num_steps": 2, "decision": "reveal", "reduction": "mean"}]
)
def test_replayed_rows_have_ratio_one(name: str, order: str, settings: dict[str, Any]) -> None:
    contract.check_replayed_rows(subject(name, order=order, order_noise=(2.0, 0.0), **settings))


@pytest.mark.each_value
@every_family
@pytest.mark.parametrize("estimate", ["whole", "shares", "bound"])
def test_replayed_rows_keep_their_maskings(name: str, estimate: str) -> None:
    replay = subject(name, num_steps=4, reading={"estimate": estimate, "num_levels": 2})
    policy = replay.make(replay.rows)
    assert isinstance(policy, MaskedPolicy)
    read = policy.read([OffPolicySample(sample=sample) for sample in replay.rollout(policy).samples], seed=3)
    contract.check_ratio_of_read_rows(replay, policy, read)
    again = policy_of(name, reading={"estimate": "whole"})  # settings of a resumed run
    contract.check_ratio_of_read_rows(replay, again, read)


@pytest.mark.nightly
def test_rows_with_several_kinds_of_decisions_share_a_rollout() -> None:
    policies = [policy_of("eurobert", **settings) for settings in ({"num_steps": 3}, GUIDED | {"num_steps": 2})]
    rollouts = [policy.rollout(prompts_of(), group_size=2, seed=5) for policy in policies]
    samples = [rollout.off_policy_sample(row, Source.REPLAY) for row in range(4) for rollout in rollouts]
    answer = OffPolicySample(sample=rollouts[0].samples[0])
    read = policies[0].read([*samples, answer], seed=1)
    assert read.num_decisions_B is not None
    assert read.num_decisions_B.tolist() == [6, 2] * 4 + [6]
    assert read.token_BT is None
    for number, rollout in enumerate(rollouts):
        T = rollout.shape[1]
        assert torch.equal(read.old_logprob_BT[number:8:2, :T], rollout.old_logprob_BT)
        assert not read.mask_BT[number:8:2, T:].any()
    assert contract.largest_difference(contract.values(policies[0], read), read.old_logprob_BT, read.mask_BT) < 4e-6
    overridden = policies[0].override_prompts(read, [sample.prompt for sample in read.samples])
    assert (
        contract.largest_difference(contract.values(policies[0], overridden), read.old_logprob_BT, read.mask_BT) < 4e-6
    )
    moved = policy_of("eurobert", batch=1, num_steps=3)
    for policy in (moved, policies[0]):
        contract.move(policy.trainable)
    assert contract.relative_difference(contract.gradients(moved, read), contract.gradients(policies[0], read)) < 1e-4


@every_family
def test_tokens_follow_the_order_of_decisions(name: str) -> None:
    policy = policy_of(name, num_steps=4, order="random")
    rollout = policy.rollout(prompts_of(), group_size=2, seed=5)
    assert rollout.token_BT is not None
    order_BL = torch.cat([look.position_Bn for look in rollout.trace.passes], dim=1)
    for row, sample in enumerate(rollout.samples):
        assert rollout.token_BT[row].tolist() == [list(sample.tokens or ())[position] for position in order_BL[row]]
        assert not rollout.tokens_match_sample(row)
    assert (policy_of(name, **GUIDED | {"num_steps": 2})).rollout(prompts_of(), group_size=1, seed=5).token_BT is None


def test_a_suppressed_token_raises() -> None:
    policy = policy_of("eurobert")
    sample = policy.rollout(prompts_of(), group_size=1, seed=5).samples[1]
    token = next(iter(sample.tokens or ()))
    with pytest.raises(DataError, match=rf"group 1, member 0\) has the token {token} at position 0.*policy.suppress"):
        policy_of("eurobert", suppress=(token,)).read([OffPolicySample(sample=sample)], seed=0)


def test_demonstrations_have_tokens() -> None:
    policy = policy_of("eurobert")
    prompt = prompts_of()[0]
    (sample,) = policy.read([OffPolicySample(sample=Sample(prompt, 0, 0, text="a red circle"))], seed=0).samples
    assert sample.tokens == policy.predictor.target(Example(prompt, text="a red circle")).tolist()
