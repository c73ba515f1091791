"""Features of frozen media encoders: once per prompt over a rollout, its re-scoring and its updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.types import Rollout
from tests.policies.contract import gradients, move, relative_difference
from tests.policies.families import daily
from tests.policies.tiny_language import policy_of, prompts_of

SEED = 5
FAMILIES = ("qwen2-vl", "qwen3-vl", "llava-next", "llava-onevision", "idefics3", "internvl", "gemma3", "paligemma")
LORA = {"rank": 2, "alpha": 2.0}


@contextmanager
def encoder_rows(policy: LanguagePolicy) -> Iterator[list[int]]:
    """The length of the first dimension of every call of the vision encoder."""
    rows: list[int] = []
    encoder: Any = policy.model.get_encoder(modality="image")
    first = next(module for name, module in encoder.named_modules() if name and not list(module.children()))
    handle = first.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    try:
        yield rows
    finally:
        handle.remove()


def _trained(policy: LanguagePolicy, rollout: Rollout) -> list[Tensor]:
    """The log-probabilities of every slice of a re-scoring, and of one under the reference."""
    with torch.no_grad():
        current = [evaluation.logprob_BT for evaluation in policy.evaluate(rollout)]
        with policy.reference():
            return current + [evaluation.logprob_BT for evaluation in policy.evaluate(rollout)]


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(FAMILIES, "qwen3-vl"))
def test_a_frozen_encoder_runs_once_per_prompt(name: str) -> None:
    policy, uncached = policy_of(name, lora=LORA), policy_of(name, lora=LORA, memo_bytes=0)
    prompts = prompts_of(name)
    for each in (policy, uncached):
        move(each.trainable)
    rollout, expected = (each.rollout(prompts, group_size=3, seed=SEED) for each in (policy, uncached))
    assert [sample.tokens for sample in rollout.samples] == [sample.tokens for sample in expected.samples]
    torch.testing.assert_close(rollout.old_logprob_BT, expected.old_logprob_BT, atol=1e-5, rtol=0.0)
    with encoder_rows(policy) as rows:
        scored, gradient = _trained(policy, rollout), gradients(policy, rollout)
        assert rows == []
    with encoder_rows(uncached) as rows:
        for logprob_BT, expected_BT in zip(scored, _trained(uncached, expected), strict=True):
            torch.testing.assert_close(logprob_BT, expected_BT, atol=1e-5, rtol=0.0)
        assert rows != []
    assert relative_difference(gradient, gradients(uncached, expected)) <= 1e-4


def test_features_of_a_trained_encoder_are_computed_again() -> None:
    policy = policy_of("qwen3-vl", freeze_vision=False)
    rollout = policy.rollout(prompts_of("qwen3-vl"), group_size=2, seed=SEED)
    with encoder_rows(policy) as rows:
        gradient = gradients(policy, rollout)
        assert rows != []
    encoder: Any = policy.model.get_encoder(modality="image")
    trained = {id(parameter) for parameter in encoder.parameters()}
    pairs = zip(policy.trainable, gradient, strict=True)
    assert any(id(parameter) in trained and bool(part.any()) for parameter, part in pairs)


def test_features_take_at_most_memo_bytes() -> None:
    policy = policy_of("qwen3-vl", lora=LORA, memo_bytes=40_000)
    prompts = [prompt for _ in range(4) for prompt in prompts_of("qwen3-vl")]
    policy.rollout(prompts, group_size=2, seed=SEED)
    features: Any = policy.path.transformer._features  # pyrefly: ignore[missing-attribute]
    stored = [part.num_bytes for part in features._parts.values()]
    assert 0 < sum(stored) == features._bytes <= 40_000


def test_other_pixels_under_stored_ids_are_encoded_again() -> None:
    policy = policy_of("qwen3-vl", lora=LORA)
    (prompt, _) = prompts_of("qwen3-vl")
    encoded = policy._encoder(prompt)
    transformer: Any = policy.path.transformer  # pyrefly: ignore[missing-attribute]

    def hidden() -> Tensor:
        with torch.no_grad():
            return transformer.prefill([encoded], max_tokens=1000).hidden_ND

    before = hidden()
    assert torch.equal(hidden(), before)
    encoded.media["pixel_values"].mul_(-1.0)  # in place: the same tensor, other pixels
    assert float((hidden() - before).abs().max()) > 1e-4
