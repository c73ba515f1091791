"""Rows scored under other prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from mmgrpo.policies.completion import CompletionTurn
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy
from mmgrpo.types import OffPolicySample, Plan, Prompt, Rollout
from tests.policies.tiny_language import picture, policy_of, prompts_of
from tests.policies.tiny_policies import pipeline_of, settings_of

Built = LanguagePolicy | DenoisingPolicy


def pictures(**settings) -> DenoisingPolicy:
    return DenoisingPolicy(pipeline_of("sd3"), settings_of("sd3", **settings))


def rollout_of(policy: Built, prompts: list[Prompt]) -> Rollout:
    return policy.rollout(prompts, group_size=2, seed=3)


def again(policy: Built, prompts: list[Prompt]) -> Rollout:
    first = policy.rollout(prompts, group_size=2, seed=3, plan=Plan(stochastic=(), keep_latents=True))
    return policy.read([OffPolicySample(sample=sample) for sample in first.samples], seed=5)


CASES: dict[str, tuple[Callable[[], Built], list[Prompt], Callable[[Built, list[Prompt]], Rollout]]] = {
    "tokens": (lambda: policy_of("llama"), prompts_of("llama"), rollout_of),
    "pictures and tokens": (lambda: policy_of("qwen2.5-vl"), prompts_of("qwen2.5-vl"), rollout_of),
    "steps": (pictures, [Prompt("a red fox"), Prompt("two blue squares")], rollout_of),
    "noised samples": (pictures, [Prompt("a red fox"), Prompt("two blue squares")], again),
}


@torch.no_grad()
def logprobs(policy: Policy, rollout: Rollout) -> Tensor:
    result_BT = torch.zeros(rollout.shape)
    for part in policy.evaluate(rollout):
        assert part.rows is not None
        result_BT[part.rows[:, None], torch.tensor(list(part.columns))] = part.logprob_BT.cpu()
    return result_BT


@pytest.mark.first_case
@pytest.mark.parametrize("name", CASES)
def test_the_same_prompt_keeps_log_probabilities(name: str) -> None:
    build, prompts, make = CASES[name]
    policy = build()
    rollout = make(policy, prompts)
    overridden = policy.override_prompts(rollout, [replace(sample.prompt) for sample in rollout.samples])
    assert torch.equal(overridden.mask_BT, rollout.mask_BT)
    assert torch.equal(overridden.old_logprob_BT, rollout.old_logprob_BT)
    torch.testing.assert_close(logprobs(policy, overridden), logprobs(policy, rollout), atol=1e-6, rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_another_prompt_gives_its_log_probabilities(name: str) -> None:
    """Behind each other's prompts the rows are those of a rollout whose samples say they were shown those."""
    build, prompts, make = CASES[name]
    policy = build()
    rollout = make(policy, prompts)
    swapped = [prompts[1 - sample.group] for sample in rollout.samples]
    result_BT = logprobs(policy, policy.override_prompts(rollout, swapped))
    back_BT = logprobs(
        policy, policy.override_prompts(policy.override_prompts(rollout, swapped), [s.prompt for s in rollout.samples])
    )
    now_BT = logprobs(policy, rollout)
    assert ((result_BT - now_BT).abs() > 1e-5)[rollout.mask_BT].float().mean() > 0.5
    torch.testing.assert_close(back_BT, now_BT, atol=1e-6, rtol=1e-6)
    if name in ("tokens", "pictures and tokens"):
        overridden = [
            OffPolicySample(sample=replace(sample, prompt=prompt))
            for sample, prompt in zip(rollout.samples, swapped, strict=True)
        ]
        torch.testing.assert_close(policy.read(overridden, seed=0).old_logprob_BT, result_BT, atol=1e-6, rtol=1e-6)


@pytest.mark.nightly
def test_members_with_different_prompts_share_no_state() -> None:
    policy = pictures()
    rollout = policy.rollout([Prompt("a red fox")], group_size=2, seed=3, plan=Plan(same_initial_noise=True))
    other = Prompt("two blue squares")
    overridden = policy.override_prompts(rollout, [rollout.samples[0].prompt, other])
    alone = policy.override_prompts(rollout, [other, other])
    assert rollout.state_BT[0, 0] == rollout.state_BT[1, 0]
    assert overridden.state_BT[0, 0] != overridden.state_BT[1, 0]
    assert alone.state_BT[0, 0] == alone.state_BT[1, 0]
    torch.testing.assert_close(logprobs(policy, overridden)[0], logprobs(policy, rollout)[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(logprobs(policy, overridden)[1], logprobs(policy, alone)[1], atol=1e-6, rtol=1e-6)


def test_unsupported_views_raise() -> None:
    words, images = policy_of("llama"), pictures()
    written, painted = rollout_of(words, prompts_of("llama")), rollout_of(images, [Prompt("a red fox")])
    with pytest.raises(ConfigError, match="of another kind"):
        words.override_prompts(painted, [sample.prompt for sample in painted.samples])
    with pytest.raises(ConfigError, match="of another kind"):
        images.override_prompts(written, [sample.prompt for sample in written.samples])
    other = replace(written, samples=[replace(sample, text="quite another") for sample in written.samples])
    with pytest.raises(ConfigError, match="give it the tokenizer"):
        words.override_prompts(other, [sample.prompt for sample in other.samples])


def test_conversations_with_other_prompts_raise() -> None:
    policy = policy_of("llama")
    rollout = rollout_of(policy, prompts_of("llama"))
    samples = [
        replace(completion, turns=(CompletionTurn(start=0, end=1, reward=None, key=""),))
        for completion in rollout.trace.completions
    ]
    exchanged = replace(rollout, trace=replace(rollout.trace, completions=samples))
    same = policy.override_prompts(exchanged, [sample.prompt for sample in rollout.samples])
    assert same.trace.completions == exchanged.trace.completions
    with pytest.raises(ConfigError, match="a conversation"):
        policy.override_prompts(exchanged, [replace(sample.prompt, text="another") for sample in rollout.samples])


def test_a_masked_image_changes_the_log_probabilities() -> None:
    policy = policy_of("qwen2.5-vl")
    rollout = rollout_of(policy, prompts_of("qwen2.5-vl"))
    other = [replace(s.prompt, images=[picture(*p.size, seed=9) for p in s.prompt.images]) for s in rollout.samples]
    assert not torch.allclose(
        logprobs(policy, policy.override_prompts(rollout, other)), logprobs(policy, rollout), atol=1e-4
    )
