"""Frozen encoders run once per unique input."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion.encoder_cache import EncoderCache, tokenize_unique
from torch import Tensor, nn
from transformers import BatchEncoding

from mmgrpo.types import Plan, Prompt
from mmgrpo.values import from_reference
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of

SEED = 3


def _count_rows(module: nn.Module) -> list[int]:
    """Grows by the batch rows of each call of the module from now on."""
    rows: list[int] = []
    forward = module.forward

    @wraps(forward)
    def counted(*args: Any, **kwargs: Any) -> Any:
        first = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        rows.append(first.shape[0])
        return forward(*args, **kwargs)

    module.forward = counted  # a module with a hook is never skipped
    return rows


def _count_pictures(processor: Any) -> list[int]:
    """Grows by the images of each call that makes pixels of them."""
    counts: list[int] = []
    resize = processor.pil_to_numpy

    def counted(pictures: Any) -> Any:
        counts.append(len(pictures))
        return resize(pictures)

    processor.pil_to_numpy = counted
    return counts


@pytest.mark.nightly
def test_each_prompt_is_encoded_once_for_any_batches() -> None:
    pipeline = pipeline_of("sd3")
    encoded = _count_rows(pipeline.text_encoder), _count_rows(pipeline.text_encoder_2)
    policy = policy_of("sd3", pipeline, guided=True, batch=3)
    prompts = [*prompts_of("sd3"), Prompt("a red fox")]
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert encoded == ([1] * 4, [1] * 4)  # two prompts, the empty negative one, the long one with a row in its batch
    for rows in (None, [0], [5, 1]):
        for evaluation in policy.evaluate(rollout, rows, values=[from_reference("gaussian")]):
            evaluation.logprob_BT.sum().backward()
    policy.rollout(prompts[:1], group_size=3, seed=SEED + 1, plan=Plan(same_initial_noise=True))
    policy.rollout(prompts, group_size=1, seed=SEED, plan=Plan(stochastic=()))
    assert encoded == ([1] * 4, [1] * 4)
    policy.rollout([Prompt("a black cat")], group_size=1, seed=SEED)
    assert encoded == ([1] * 5, [1] * 5)


@pytest.mark.nightly
def test_a_condition_image_is_encoded_once() -> None:
    pipeline = pipeline_of("flux-kontext")
    encoded = _count_rows(pipeline.vae.encoder)
    policy = policy_of("flux-kontext", pipeline)
    prepared = _count_pictures(pipeline.image_processor)
    for seed in (SEED, SEED + 1):
        rollout = policy.rollout(prompts_of("flux-kontext"), group_size=2, seed=seed)
        for _ in policy.evaluate(rollout):
            pass
        policy.rollout(prompts_of("flux-kontext"), group_size=2, seed=seed, plan=Plan(stochastic=()))
    assert encoded == [1, 1]  # the second is its negative, with which rows were found to be kept apart
    assert prepared == [1, 1]


def test_rows_are_encoded_alone_and_concatenated() -> None:
    memo, layer = EncoderCache(2**20), nn.Linear(3, 2)
    rows = torch.tensor([[1.0, 2, 3], [4, 5, 6], [1, 2, 3]])
    with torch.no_grad():
        expected = layer(rows)
    torch.testing.assert_close(memo(layer, layer, (rows,), {}), expected)
    assert memo.num_computed == 2
    torch.testing.assert_close(memo(layer, layer, (rows[1:],), {}), expected[1:])
    assert memo.num_computed == 2


def test_cached_outputs_cannot_be_modified() -> None:
    memo, layer = EncoderCache(2**20), nn.Identity()
    memo(layer, layer, (torch.zeros(1, 2),), {}).add_(1)
    assert torch.equal(memo(layer, layer, (torch.zeros(1, 2),), {}), torch.zeros(1, 2))


def test_random_and_opaque_inputs_are_not_cached() -> None:
    memo, layer = EncoderCache(2**20), nn.Identity()

    def sample(x: Tensor, *, source: Any) -> Tensor:
        return torch.randn(x.shape, generator=source if isinstance(source, torch.Generator) else None)

    for source in (torch.Generator().manual_seed(0), object()):
        first, second = (memo(layer, sample, (torch.zeros(1, 8),), {"source": source}) for _ in range(2))
        assert not torch.equal(first, second)
    assert memo.num_computed == 0


def test_the_least_recently_used_is_evicted_first() -> None:
    memo, layer = EncoderCache(2 * 4 * 10), nn.Identity()  # two rows of ten floats
    a, b, c = (torch.full((1, 10), value) for value in (1.0, 2.0, 3.0))
    for row in (a, b, a, c):
        memo(layer, layer, (row,), {})
    assert memo.num_computed == 3
    memo(layer, layer, (a,), {})
    assert memo.num_computed == 3
    memo(layer, layer, (b,), {})
    assert memo.num_computed == 4


def test_key_value_caches_are_not_cached() -> None:
    class DynamicCache:
        pass

    memo, layer = EncoderCache(2**20), nn.Identity()
    for rows in (1, 2):
        output = memo(layer, lambda x: {"state": x, "cache": DynamicCache()}, (torch.ones(rows, 2),), {})
        assert torch.equal(output["state"], torch.ones(rows, 2))
        assert output["cache"] is None


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "max_length", "max_length": 6, "truncation": True},
        {"padding": "longest"},
        {"padding": True, "return_attention_mask": True},
    ],
    ids=["max_length", "longest", "mask"],
)
def test_distinct_texts_are_tokenized_once(options: dict[str, Any]) -> None:
    tokenizer, calls = pipeline_of("sd3").tokenizer, []
    texts = ["a red fox", "a", "a red fox", "a blue square on a blue square", "a"]

    def counted(texts: list[str], **options: Any) -> BatchEncoding:
        calls.append(len(texts))
        return tokenizer(texts, **options)

    result = tokenize_unique(counted, (texts,), {**options, "return_tensors": "pt"})
    expected = tokenizer(texts, **options, return_tensors="pt")
    assert calls == [3]
    assert set(result) == set(expected)
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert result.input_ids is result["input_ids"]


def test_other_calls_of_a_tokenizer_are_unchanged() -> None:
    tokenizer = pipeline_of("sd3").tokenizer
    assert tokenize_unique(tokenizer, ("a red fox",), {}) == tokenizer("a red fox")
    assert tokenize_unique(tokenizer, (), {"text": ["a", "a"]}) == tokenizer(["a", "a"])
