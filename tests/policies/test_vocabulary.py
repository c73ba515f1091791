"""Ids that are no token are never sampled, and special tokens that a model writes as content are part of its text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.masked import MaskedPolicy
from mmgrpo.policies.vocabulary import TextDecoder, unnamed_ids
from mmgrpo.rewards.text.structure import Format
from transformers import Qwen2Config, Qwen2ForCausalLM

from mmgrpo.environment import Environment, Turn
from mmgrpo.types import OffPolicySample, Plan, Prompt, Sample
from tests.policies.contract import largest_difference, values
from tests.policies.tiny_masked import parts_of
from tests.tiny.language_models import make

PADDED = 29


def padded_policy(**settings: Any) -> LanguagePolicy:
    """A model with more logits than its tokenizer has tokens, as Qwen2.5 has."""
    tokenizer = make("qwen2")[1]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + PADDED,  # pyrefly: ignore[bad-argument-type]
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,  # pyrefly: ignore[missing-attribute]
    )
    return LanguagePolicy(Qwen2ForCausalLM(config).eval(), tokenizer, {"max_new_tokens": 12, **settings})


@pytest.mark.parametrize("settings", [{}, {"share_prefix": False}, {"top_k": 400}, {"top_p": 0.9}], ids=str)
def test_ids_of_a_padded_vocabulary_are_never_sampled(settings: dict[str, Any]) -> None:
    policy = padded_policy(**settings)
    num_tokens = len(policy.processor)
    rollout = policy.rollout([Prompt("what")], group_size=16, seed=0)
    assert max(token for sample in rollout.samples for token in sample.tokens) < num_tokens  # pyrefly: ignore[not-iterable]
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6


def test_logprobs_are_those_of_the_tokens_alone() -> None:
    """log p = l - log sum exp l over the tokens that the tokenizer has."""
    policy = padded_policy()
    num_tokens = len(policy.processor)
    rollout = policy.rollout([Prompt("what")], group_size=2, seed=0)
    prompt = policy._encoder(Prompt("what")).ids_P
    token_T = torch.tensor(rollout.samples[0].tokens)
    with torch.no_grad():
        logits = policy.model(torch.cat([prompt, token_T])[None]).logits[0, len(prompt) - 1 : -1]
    expected_T = logits[:, :num_tokens].log_softmax(-1).gather(1, token_T[:, None])[:, 0]
    torch.testing.assert_close(rollout.old_logprob_BT[0, : len(token_T)], expected_T, atol=1e-6, rtol=0)


def test_a_vocabulary_without_padding_has_no_unnamed_ids() -> None:
    tokenizer = make("llama")[1]
    assert unnamed_ids(tokenizer, len(tokenizer)) == []  # pyrefly: ignore[bad-argument-type]
    assert unnamed_ids(tokenizer, len(tokenizer) + 2) == [len(tokenizer), len(tokenizer) + 1]  # pyrefly: ignore[bad-argument-type]


def tagged_policy() -> LanguagePolicy:
    model, tokenizer = make("qwen2")
    model = copy.deepcopy(model)
    tags = ["<answer>", "</answer>", "<think>", "</think>", "<|call|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": tags})  # pyrefly: ignore[missing-attribute]
    model.resize_token_embeddings(len(tokenizer))  # pyrefly: ignore[bad-argument-type]
    return LanguagePolicy(model, tokenizer, {"max_new_tokens": 40})


def answered(policy: LanguagePolicy, text: str) -> Sample:
    """An answer as the policy tokenizes it, read without its text."""
    ids = [*policy.processor(text, add_special_tokens=False)["input_ids"], policy.processor.eos_token_id]
    sample = Sample(Prompt("what"), 0, 0, tokens=ids, finished=True)
    return policy.read([OffPolicySample(sample=sample)], seed=0).samples[0]


def test_tags_that_are_special_tokens_are_part_of_the_text() -> None:
    policy = tagged_policy()
    text = "<think>red</think><answer>4</answer><|call|>"
    sample = answered(policy, text)
    assert sample.text == text  # without <|im_end|>
    pieces = ["<think>", "red", "</think>", "<answer>", "4", "</answer>", "<|call|>"]
    ends = sorted(set(policy.text_offsets(sample)))
    assert {len("".join(pieces[: n + 1])) for n in range(len(pieces))} <= set(ends)
    assert policy.text_offsets(sample)[-2:] == [len(text)] * 2
    (score,) = Format()([answered(policy, "<think>red</think><answer>4</answer>")])
    assert getattr(score, "value", score) == 1.0


@pytest.mark.nightly
def test_an_environment_reads_tags_that_are_special_tokens() -> None:
    policy = tagged_policy()
    turns: list[str] = []

    class Listener(Environment):
        def reset(self, prompt: Prompt) -> Turn:
            return Turn(text="go on")

        def step(self, text: str) -> Turn:
            turns.append(text)
            return Turn(done=True)

    tag = policy.processor.convert_tokens_to_ids("<answer>")
    plan = Plan(environment=Listener, max_turns=1, settings={"temperature": 20.0, "max_new_tokens": 150})
    samples = policy.rollout([Prompt("what")], group_size=24, seed=0, plan=plan).samples
    assert any(sample.finished and tag in sample.tokens for sample in samples)  # pyrefly: ignore[not-iterable]
    for sample in samples:
        assert sample.turn_texts == [sample.text]
        assert (tag in sample.tokens) == ("<answer>" in sample.text)  # pyrefly: ignore[not-iterable]
    assert {sample.text for sample in samples if sample.finished} <= set(turns)


def test_tokens_of_the_chat_template_are_no_part_of_a_text() -> None:
    policy = tagged_policy()
    policy.processor.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<answer>", "</answer>"]})
    decoder = LanguagePolicy(policy.model, policy.processor, {"max_new_tokens": 4})._encoder.text
    ids = policy.processor("<|im_start|>red<answer>4</answer><|im_end|>", add_special_tokens=False)["input_ids"]
    assert decoder(ids) == "red<answer>4</answer>"


@pytest.mark.parametrize("name", ["llama", "qwen3-vl", "idefics3", "internvl", "gemma3", "paligemma"])
def test_texts_without_such_tokens_are_decoded_as_before(name: str) -> None:
    model, processor = make(name)
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 4})
    tokenizer: Any = getattr(processor, "tokenizer", processor)
    rows = torch.randint(0, len(tokenizer), (20, 12), generator=torch.Generator().manual_seed(0)).tolist()
    for ids in [row for row in rows if policy._encoder.text.text_ids.isdisjoint(row)]:
        assert policy._encoder.text(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    assert not policy._encoder.text.text_ids


def test_language_codes_of_translators_are_no_part_of_a_text() -> None:
    tokenizer: Any = make("llama")[1]
    tokenizer.add_special_tokens({"additional_special_tokens": ["fra_Latn"]})
    assert TextDecoder(tokenizer).text_ids == {tokenizer.convert_tokens_to_ids("fra_Latn")}
    tokenizer.src_lang = "eng_Latn"
    assert not TextDecoder(tokenizer).text_ids


@pytest.mark.parametrize("tags", [[], ["<answer>", "</answer>"]], ids=str)
def test_a_masked_model_samples_tokens_alone_and_shows_tags(tags: list[str]) -> None:
    model, tokenizer = parts_of("eurobert")
    tokenizer.add_special_tokens({"additional_special_tokens": tags})
    num_tokens = len(tokenizer)
    model.resize_token_embeddings(num_tokens + 200, mean_resizing=False)
    policy = MaskedPolicy(model, tokenizer, settings={"length": 16, "temperature": 9.0})
    rollout = policy.rollout([Prompt("what")], group_size=32, seed=0)
    assert max(token for sample in rollout.samples for token in sample.tokens) < num_tokens  # pyrefly: ignore[not-iterable]
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
    ids = tokenizer.convert_tokens_to_ids([*tags, tokenizer.eos_token])
    token_NL = torch.tensor([ids + [ids[-1]] * (16 - len(ids))])
    (sample,) = policy.predictor.samples([Sample(Prompt("what"), 0, 0)], token_NL)
    assert sample.text == "".join(tags)
