"""The language policy against transformers itself, and where its promises could break."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.forward_paths import CachedPath
from mmgrpo.policies.language.transformer import Transformer
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoProcessor

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.explain.memory_meter import MemoryMeter
from mmgrpo.types import Example, Plan, Prompt, Rollout
from mmgrpo.values import DRIFT, ENTROPY, REFERENCE, Value, from_reference
from tests.breadth.language.families import families
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.tiny_language import TEMPERATURE, picture, policy_of, prompts_of
from tests.tiny.language_models import TINY, make

GREEDY = Plan(stochastic=())
FAMILIES = ("llama", "gemma2", "mistral", "qwen2.5-vl", "idefics3", "gemma3")
SEED = 3


def transformer_of(policy: LanguagePolicy) -> Transformer:
    assert isinstance(policy.path, CachedPath)
    return policy.path.transformer


def rollout_of(policy: LanguagePolicy, name: str, group_size: int = 3) -> Rollout:
    return policy.rollout(prompts_of(name), group_size=group_size, seed=SEED)


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 2.0}], ids=["full", "lora"])
@pytest.mark.parametrize("name", daily(FAMILIES, "llama", "qwen2.5-vl", "gemma3"))
def test_a_prompt_computed_once_per_group_keeps_log_probabilities(name: str, lora: dict[str, Any] | None) -> None:
    shared, plain = policy_of(name, lora=lora), policy_of(name, lora=lora, share_prefix=False)
    rollout = rollout_of(shared, name)
    assert shared.shares_prefix
    assert not plain.shares_prefix
    move(shared.trainable)
    move(plain.trainable)
    values_BT = values(plain, rollout)
    assert largest_difference(values(shared, rollout), values_BT, rollout.mask_BT) < 1e-6
    assert relative_difference(gradients(shared, rollout), gradients(plain, rollout)) < 1e-5


def test_a_linear_attention_cache_is_not_shared() -> None:
    policy = policy_of("qwen3.5")
    assert not policy.shares_prefix
    with pytest.raises(
        ConfigError, match="share_prefix is true, but rows cannot share the cache of Qwen3_5ForCausalLM"
    ):
        policy_of("qwen3.5", share_prefix=True)


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 2.0}], ids=["full", "lora"])
@pytest.mark.parametrize("name", daily(FAMILIES, "llama", "qwen2.5-vl"))
def test_gradient_checkpointing_changes_no_gradient(name: str, lora: dict[str, Any] | None) -> None:
    plain = policy_of(name, lora=lora, share_prefix=False)
    checkpointed = policy_of(name, lora=lora, gradient_checkpointing=True)
    rollout = rollout_of(checkpointed, name)
    assert checkpointed.shares_prefix
    assert largest_difference(values(checkpointed, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    move(plain.trainable)
    move(checkpointed.trainable)
    assert largest_difference(values(checkpointed, rollout), values(plain, rollout), rollout.mask_BT) < 1e-6
    assert relative_difference(gradients(checkpointed, rollout), gradients(plain, rollout)) < 1e-5


@pytest.mark.nightly
def test_gradient_checkpointing_runs_layers_within_layers_once_more() -> None:
    family = families()["zamba"]  # a hybrid layer holds a Mamba layer
    model, processor = family.make()
    both = []
    for checkpointed in (False, True):
        settings = {"max_new_tokens": 4, "temperature": TEMPERATURE, "gradient_checkpointing": checkpointed}
        policy = LanguagePolicy(copy.deepcopy(model), processor, settings)
        both.append((policy, policy.rollout(family.prompts, group_size=2, seed=SEED)))
    (plain, rollout), (checkpointed_policy, _) = both
    assert relative_difference(gradients(checkpointed_policy, rollout), gradients(plain, rollout)) < 1e-5


def test_layers_that_cannot_run_again_raise() -> None:
    model, processor = families()["openai-gpt"].make()
    with pytest.raises(ConfigError, match="OpenAIGPTLMHeadModel has no layers of transformers that run again"):
        LanguagePolicy(model, processor, {"gradient_checkpointing": True})


@pytest.mark.nightly
def test_shared_prompts_and_checkpointed_layers_each_save_memory() -> None:
    prompt = Prompt("how many red squares " * 8)
    stored: dict[tuple[bool, bool], int] = {}
    peaks: dict[tuple[bool, bool], int] = {}
    for shared, checkpointed in product((False, True), repeat=2):
        policy = policy_of("llama", share_prefix=shared, gradient_checkpointing=checkpointed)
        rollout = policy.rollout([prompt], group_size=8, seed=SEED)
        gradients(policy, rollout)  # allocates them
        with MemoryMeter(policy.model.parameters()) as meter:
            loss = next(iter(policy.evaluate(rollout))).logprob_BT.sum()
            stored[shared, checkpointed] = meter.live
            loss.backward()
        peaks[shared, checkpointed] = meter.peak
    for sizes, share in ((stored, 0.4), (peaks, 0.7)):  # a peak has the tensors of one layer, and of the logits, too
        assert sizes[True, True] < share * min(sizes[True, False], sizes[False, True])


def test_checkpointed_layers_run_twice_and_only_under_grad() -> None:
    policy = policy_of("llama", gradient_checkpointing=True)
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    rollout = rollout_of(policy, "llama")
    policy.model.model.layers[0].self_attn.register_forward_hook(count)
    values(policy, rollout)
    once, calls = calls, 0
    gradients(policy, rollout)
    assert calls == 2 * once


def test_logits_made_in_chunks_are_the_same() -> None:
    complete, chunked = policy_of("llama"), policy_of("llama", head_bytes=1)
    rollout = rollout_of(complete, "llama", group_size=8)
    assert int(rollout.mask_BT.sum()) > 64  # several chunks of 16
    move(complete.trainable)
    move(chunked.trainable)
    assert largest_difference(values(chunked, rollout), values(complete, rollout), rollout.mask_BT) < 1e-6
    assert relative_difference(gradients(chunked, rollout), gradients(complete, rollout)) < 1e-6


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "llava-onevision", "internvl"])
def test_videos_are_read(name: str) -> None:
    if not TINY[name].videos:
        pytest.skip(f"tiny {name} has no video processor")
    size = {"resized_height": 32, "resized_width": 32} if name.startswith("qwen") else {}
    policy = policy_of(name, video=size)
    frames = [picture(32, 32, seed) for seed in range(4)]
    prompts = [Prompt("what is shown", videos=[frames]), Prompt("what is shown", videos=[frames[::-1]])]
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    first, second = (transformer_of(policy).prefill([policy._encoder(p)], max_tokens=9999).hidden_ND for p in prompts)
    assert (first - second).abs().max() > 1e-3  # the order of the frames is seen


def test_the_supervised_loss_is_that_of_transformers() -> None:
    policy = policy_of("qwen2.5-vl")
    examples = [
        Example(prompt, text) for prompt, text in zip(prompts_of("qwen2.5-vl"), ("one", "two red"), strict=True)
    ]
    loss = policy.supervised_loss(examples, seeds=[0, 1])
    end = policy._tokenizer.convert_tokens_to_ids("<|im_end|>")
    sums, count = [], 0
    for example in examples:
        encoded = policy._encoder(example.prompt)
        target = torch.cat([policy._encoder.encode_text(example.text or ""), torch.tensor([end])])
        ids = torch.cat([encoded.ids_P, target])[None]
        types = torch.cat(
            [encoded.per_token["mm_token_type_ids"], torch.zeros(1, len(target), dtype=torch.long)], dim=1
        )
        labels = torch.cat([torch.full((encoded.length,), -100), target])[None]
        out = policy.model(input_ids=ids, labels=labels, mm_token_type_ids=types, **encoded.media)
        sums.append(out.loss.item() * len(target))
        count += len(target)
    assert loss.mean.item() == pytest.approx(sum(sums) / count, rel=1e-5)
    assert loss.num_terms == count
    with pytest.raises(DataError, match="needs examples with a text"):
        policy.supervised_loss([Example(Prompt("x"))], seeds=[0])


def test_the_divergence_is_from_the_untrained_model() -> None:
    policy = policy_of("llama")
    rollout = rollout_of(policy, "llama")
    with policy.reference():
        pass
    move(policy.trainable)
    k1, reference = from_reference("k1"), Value("logprob", REFERENCE)
    for evaluation in policy.evaluate(rollout, values=[k1, ENTROPY, reference]):
        assert evaluation.rows is not None
        index = evaluation.rows[:, None], torch.tensor(list(evaluation.columns))[None]
        indices = rollout.mask_BT[index]
        assert set(evaluation.values) == {k1, ENTROPY, reference}
        expected = evaluation.logprob_BT - rollout.old_logprob_BT[index]
        assert torch.allclose(evaluation.values[k1][indices], expected[indices], atol=2e-5)
        assert torch.allclose(evaluation.values[reference][indices], rollout.old_logprob_BT[index][indices], atol=2e-5)
        assert not evaluation.values[reference].requires_grad
        assert (evaluation.values[ENTROPY][indices] > 0).all()
        assert (evaluation.values[ENTROPY][~indices] == 0).all()
        assert evaluation.num_forwards == 2 * len(evaluation.rows)  # the reference is asked once for both
    assert next(iter(policy.evaluate(rollout))).values == {}


@pytest.mark.first_case
@pytest.mark.parametrize(
    "value",
    [
        from_reference("gaussian"),
        DRIFT,
        Value("k1"),
        Value("entropy", REFERENCE),
        Value("k3", "ema"),
        Value("rank", "ema"),
    ],
    ids=str,
)
def test_unknown_values_raise_with_the_supported_ones(value: Value) -> None:
    policy = policy_of("llama")
    rollout = rollout_of(policy, "llama")
    pattern = "remove the setting that needs it; supported are .*top_logprob, and logprob, k1, k2, k3 of reference"
    with pytest.raises(ConfigError, match=f"^tokens have no value {value}: {pattern}$"):
        next(iter(policy.evaluate(rollout, values=[value])))


def test_adapters_are_read_by_peft(tmp_path: Path) -> None:
    policy = policy_of("qwen2.5-vl", lora={"rank": 2, "alpha": 2.0})
    move(policy.trainable)
    policy.save(tmp_path)
    bare, _ = make("qwen2.5-vl")
    theirs = PeftModel.from_pretrained(copy.deepcopy(bare), tmp_path).eval()
    ids = torch.arange(5, 15)[None] + 100
    with torch.no_grad():
        expected, actual = policy.model(input_ids=ids).logits, theirs(input_ids=ids).logits
        untrained = bare(input_ids=ids).logits
    assert torch.allclose(actual, expected, atol=1e-5)
    assert not torch.allclose(untrained, expected, atol=1e-2)
    assert all("visual" not in name for name, p in policy.model.named_parameters() if p.requires_grad)


def test_weights_are_read_by_transformers(tmp_path: Path) -> None:
    policy = policy_of("gemma3")
    move(policy.trainable)
    policy.save(tmp_path)
    again = type(policy.model).from_pretrained(tmp_path / "model")
    processor: Any = AutoProcessor.from_pretrained(tmp_path / "model")
    assert processor.chat_template == policy.processor.chat_template
    for (name, ours), theirs in zip(policy.model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_frozen_vision_is_not_trained() -> None:
    policy = policy_of("qwen2.5-vl", freeze_vision=True)
    outside = [p for name, p in policy.model.named_parameters() if "visual" in name]
    assert outside
    assert not any(p.requires_grad for p in outside)
    assert len(policy.trainable) == len(list(policy.model.parameters())) - len(outside)


def test_dropout_is_off_and_the_policy_exact() -> None:
    model, processor = make("llama")
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
        layer.mlp.down_proj = nn.Sequential(layer.mlp.down_proj, nn.Dropout(0.5))
    policy = LanguagePolicy(model.train(), processor, {"max_new_tokens": 5, "temperature": TEMPERATURE})
    rollout = rollout_of(policy, "llama")
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 2.0}], ids=["full", "lora"])
def test_bfloat16_is_close_on_policy(lora: dict[str, Any] | None) -> None:
    model, processor = make("qwen2.5-vl")
    policy = LanguagePolicy(
        copy.deepcopy(model).bfloat16(), processor, {"max_new_tokens": 7, "temperature": TEMPERATURE, "lora": lora}
    )
    assert all(parameter.dtype == torch.float32 for parameter in policy.trainable)
    rollout = rollout_of(policy, "qwen2.5-vl")
    gap_BT = (values(policy, rollout) - rollout.old_logprob_BT).abs()[rollout.mask_BT]
    assert gap_BT.mean() < 0.02  # of log-probabilities near -5
    assert all(torch.isfinite(gradient).all() for gradient in gradients(policy, rollout))


def test_unreadable_prompts_are_named() -> None:
    policy = policy_of("qwen2.5-vl")

    def read(*images: Any, text: str = "what", messages: Any = None) -> Tensor:
        return policy._encoder(Prompt(text, images=images, messages=messages)).ids_P

    with pytest.raises(DataError, match=r"missing\.png"):
        read("/no/such/missing.png")
    two = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "what"}]}]
    with pytest.raises(DataError, match="1 images and 0 videos"):
        read(picture(), messages=two)
    with pytest.raises(DataError, match="more than the model's context of"):
        read(text="what " * 2000)
    with pytest.raises(DataError, match="reads text only"):
        policy_of("llama")._encoder(Prompt("what", images=[picture()]))


def test_a_processor_without_a_template_reads_text_alone() -> None:
    model, processor = make("qwen2.5-vl")
    bare: Any = copy.deepcopy(processor)
    bare.chat_template = bare.tokenizer.chat_template = None
    policy = LanguagePolicy(copy.deepcopy(model), bare, {"max_new_tokens": 3})
    assert policy._encoder(Prompt("what red")).ids_P.tolist() == bare.tokenizer("what red")["input_ids"]
    with pytest.raises(DataError, match="without a chat template the text"):
        policy._encoder(Prompt("what", images=[picture()]))
    with pytest.raises(ConfigError, match="has no chat template"):
        LanguagePolicy(copy.deepcopy(model), bare, {"chat": True})
    with pytest.raises(ConfigError, match="none is used; leave them out"):
        LanguagePolicy(copy.deepcopy(model), bare, {"system": "You count."})
    turns = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "one"}]
    with pytest.raises(DataError, match="has 2 turns, which only a chat template"):
        policy._encoder(Prompt("what", messages=turns))


def test_windows_and_shared_noise_raise() -> None:
    policy = policy_of("llama")
    for plan in (Plan(stochastic=(0, 1)), Plan(same_initial_noise=True), Plan(values=(DRIFT,))):
        with pytest.raises(PolicyError, match="tokens have no windows"):
            policy.rollout([Prompt("x")], group_size=2, seed=0, plan=plan)


@pytest.mark.parametrize(
    ("name", "end"),
    [("llama", "<|eot_id|>"), ("gemma3", "<end_of_turn>"), ("qwen2.5-vl", "<|im_end|>"), ("mistral", "</s>")],
)
def test_supervised_answers_end_as_in_the_template(name: str, end: str) -> None:
    policy = policy_of(name)
    assert policy._encoder.end_id(policy._end_ids.tolist()) == policy._tokenizer.convert_tokens_to_ids(end)


def test_batches_are_limited_by_their_tokens() -> None:
    policy = policy_of("llama", update_tokens=64)
    rollout = policy.rollout([Prompt("what red " * (1 + k)) for k in range(4)], group_size=5, seed=SEED)
    lengths = [encoded.length for encoded in rollout.trace.prompts]
    for shared in (True, False):
        batches = rollout.trace.batches(range(20), max_tokens=128, shared=shared)
        assert sorted(row for batch in batches for row in batch) == list(range(20))
        for batch in batches:
            owners = [rollout.trace.prompt_of_B[row] for row in batch]
            read = len(set(owners)) if shared else len(owners)
            longest = max(len(rollout.samples[row].tokens or ()) for row in batch)
            assert read * max(lengths[owner] for owner in owners) + len(batch) * longest <= 128
        assert len(batches) < 20


def test_image_tokens_without_their_features_are_named() -> None:
    policy = policy_of("qwen2.5-vl")
    encoded = policy._encoder(Prompt("what", images=[picture()]))
    marked = encoded.ids_P != policy.model.config.image_token_id
    cut = replace(
        encoded, ids_P=encoded.ids_P[marked], per_token={"mm_token_type_ids": torch.zeros(1, int(marked.sum()))}
    )
    with pytest.raises(PolicyError, match=r"cannot read the prompt 'what'.*do not match"):
        transformer_of(policy).prefill([cut], max_tokens=999)
