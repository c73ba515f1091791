"""Which way rows go through a model: the shared one where it is exact, else another that is, else none at all."""

from __future__ import annotations

import copy
import logging
import re
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.slots import SlotLayer
from mmgrpo.policies.prefix import PrefixLayer, cache_argument
from mmgrpo.policies.text_models import language_linears
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from mmgrpo.errors import PolicyError
from mmgrpo.types import Example, Plan, Prompt, Rollout
from tests.breadth.language.families import families
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.tiny_language import TEMPERATURE, TEXTS, policy_of, prompts_of
from tests.tiny import causal_models, chat_tokenizers
from tests.tiny.language_models import _draw, make

SEED = 3
T5_SIZES: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
BERT_SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def wrapped(model: PreTrainedModel, processor: Any, **settings: Any) -> LanguagePolicy:
    options = {"max_new_tokens": 7, "temperature": TEMPERATURE, **settings}
    return LanguagePolicy(model, processor, options)


def bare_tokenizer() -> Any:
    """Without a chat template, as encoder-decoders have it."""
    tokenizer = chat_tokenizers.mistral()
    tokenizer.chat_template, tokenizer.pad_token = None, tokenizer.eos_token
    return tokenizer


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(0)
    _draw(model, 2.5)
    return model.eval()


def ids_of(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def t5(**settings: Any) -> LanguagePolicy:
    tokenizer = bare_tokenizer()
    named = ids_of(tokenizer) | {"decoder_start_token_id": tokenizer.bos_token_id}
    config = T5Config(**T5_SIZES, **named)
    return wrapped(randomized(T5ForConditionalGeneration(config)), tokenizer, **settings)


def t5_loss(policy: LanguagePolicy, prompt: Prompt, tokens: list[int]) -> torch.Tensor:
    """What transformers itself makes of an answer: its mean cross-entropy, at the sampling temperature."""
    encoded = policy._encoder(prompt)
    shifted = torch.tensor([policy.model.config.decoder_start_token_id, *tokens[:-1]])
    logits_TV = policy.model(input_ids=encoded.ids_P[None], decoder_input_ids=shifted[None]).logits[0]
    return torch.nn.functional.cross_entropy(logits_TV / TEMPERATURE, torch.tensor(tokens))


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 2.0}], ids=["full", "lora"])
def test_an_encoder_decoder_is_trained_as_it_is_called(lora: dict[str, Any] | None, caplog: Any) -> None:
    policy = t5(lora=lora)
    prompts = [Prompt(text) for text in TEXTS]
    with caplog.at_level(logging.WARNING):
        rollout = policy.rollout(prompts, group_size=3, seed=SEED)
    assert "the run uses the plain path" in caplog.text
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    move(policy.trainable)
    result, expected = gradients(policy, rollout), [torch.zeros_like(p) for p in policy.trainable]
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3))  # as gradients() weighs
    for row, sample in enumerate(rollout.samples):
        tokens = list(sample.tokens or ())
        encoded = policy._encoder(sample.prompt)
        shifted = torch.tensor([policy.model.config.decoder_start_token_id, *tokens[:-1]])
        logits_TV = policy.model(input_ids=encoded.ids_P[None], decoder_input_ids=shifted[None]).logits[0]
        logprob_T = (logits_TV / TEMPERATURE).log_softmax(-1)[range(len(tokens)), tokens]
        total = (weight_BT[row, : len(tokens)] * logprob_T).sum()
        parts = torch.autograd.grad(total, policy.trainable, allow_unused=True)
        expected = [e if p is None else e + p for e, p in zip(expected, parts, strict=True)]
    assert relative_difference(result, expected) < 1e-5


@pytest.mark.nightly
def test_an_encoder_decoder_samples_like_generate() -> None:
    policy = t5()
    prompts = [Prompt(text) for text in TEXTS]
    rollout = policy.rollout(prompts, group_size=1, seed=SEED, plan=Plan(stochastic=()))
    for prompt, sample in zip(prompts, rollout.samples, strict=True):
        model: Any = policy.model
        theirs = model.generate(policy._encoder(prompt).ids_P[None], max_new_tokens=7, do_sample=False)[0, 1:]
        assert list(sample.tokens or ()) == theirs.tolist()


def test_an_encoder_decoder_has_its_supervised_loss() -> None:
    policy = t5()
    loss = policy.supervised_loss([Example(Prompt(TEXTS[0]), "one red square")], seeds=[0])
    ids = policy._tokenizer("one red square", add_special_tokens=False)["input_ids"] + [policy._tokenizer.eos_token_id]
    model: Any = policy.model
    theirs = model(
        input_ids=policy._encoder(Prompt(TEXTS[0])).ids_P[None],
        decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, *ids[:-1]]]),
        labels=torch.tensor([ids]),
    ).loss
    assert loss.mean.item() == pytest.approx(theirs.item(), rel=1e-5)


def forgetful() -> tuple[PreTrainedModel, Any]:
    """A Llama that cuts the gradient at its cache: every value is right, a shared prompt gets no gradient."""
    model, processor = make("llama")
    model = copy.deepcopy(model)

    def cut(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        for layer in new_layers(module, kwargs):
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()

    model.model.register_forward_hook(cut, with_kwargs=True)
    return model, processor


def new_layers(module: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The layers of the cache that a call has made longer."""
    cache = kwargs.get(cache_argument(module))
    layers = [layer.longer if isinstance(layer, PrefixLayer) else layer for layer in (cache.layers if cache else ())]
    return [layer for layer in layers if layer is not None]


def test_gradients_are_compared_too(caplog: Any) -> None:
    policy = wrapped(*forgetful())
    assert policy.shares_prefix
    with caplog.at_level(logging.WARNING):
        rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=SEED)
    assert not policy.shares_prefix
    assert str(policy.path) == "prompts once per row, decoding in slots"
    assert "its gradients differ by" in caplog.text
    plain = policy_of("llama", share_prefix=False)
    assert relative_difference(gradients(policy, rollout), gradients(plain, rollout)) < 1e-5


def test_slots_that_are_not_exact_fall_back_to_batches_with_one_warning(caplog: Any) -> None:
    policy = policy_of("llama")

    def cut(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        cache = kwargs.get(cache_argument(module))
        for layer in () if cache is None else cache.layers:
            if isinstance(layer, SlotLayer):
                layer.values *= 1.5

    policy.model.get_decoder().register_forward_hook(cut, with_kwargs=True)
    with caplog.at_level(logging.WARNING):
        rollouts = [policy.rollout([Prompt(text)], group_size=2, seed=SEED) for text in TEXTS]
    assert policy.shares_prefix
    [warning] = [record.getMessage() for record in caplog.records if "the run uses" in record.getMessage()]
    assert re.fullmatch(
        r"LlamaForCausalLM on rows of text alone: the run uses prompts once per group, decoding in batches \(prompts "
        r"once per group, decoding in slots: its decoding differs by .* nats from the model's plain call\)",
        warning,
    )
    for rollout in rollouts:
        assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


@pytest.mark.nightly
def test_a_new_kind_of_row_is_checked_at_first_use(caplog: Any) -> None:
    policy = policy_of("qwen2.5-vl")
    policy.rollout([Prompt(TEXTS[0])], group_size=2, seed=SEED)

    def cut(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        for layer in new_layers(module, kwargs) if kwargs.get("pixel_values") is not None else ():
            layer.values = layer.values * 1.5

    policy.model.model.register_forward_hook(cut, with_kwargs=True)
    policy.rollout([Prompt(TEXTS[1])], group_size=2, seed=SEED)
    assert policy.shares_prefix
    with caplog.at_level(logging.WARNING):
        rollout = policy.rollout(prompts_of("qwen2.5-vl"), group_size=2, seed=SEED)
    assert str(policy.path) == "the plain path"
    assert "text alone, one picture, several pictures" in caplog.text
    assert "its decoding differs by" in caplog.text
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6


def test_a_non_causal_model_raises_before_sampling() -> None:
    tokenizer = bare_tokenizer()
    config = BertConfig(**BERT_SIZES, intermediate_size=128, **ids_of(tokenizer), max_position_embeddings=256)
    policy = wrapped(randomized(BertLMHeadModel(config)), tokenizer)  # is_decoder is false: every token sees all others
    portions: list[Any] = []
    with pytest.raises(PolicyError, match="cannot be trained on rows of text alone: no forward path is exact"):
        policy.rollout([Prompt(text) for text in TEXTS], group_size=2, seed=SEED, plan=Plan(on_samples=portions.append))
    assert not portions


def test_logits_are_made_by_the_models_own_head() -> None:
    """Nothing is known of how they are scaled: here they are divided by three."""
    tokenizer = chat_tokenizers.llama()
    model = randomized(GraniteForCausalLM(GraniteConfig(**causal_models.text(tokenizer), logits_scaling=3.0)))
    policy = wrapped(model, tokenizer)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=SEED)
    assert policy.shares_prefix
    row, token_T = 3, rollout.trace.completions[3].token_T
    ids_P = rollout.trace.prompts[1].ids_P
    with torch.no_grad():
        logits_TV = model(input_ids=torch.cat([ids_P, token_T])[None]).logits[0, len(ids_P) - 1 : -1]
    expected_T = (logits_TV / TEMPERATURE).log_softmax(-1).gather(-1, token_T[:, None])[:, 0]
    assert torch.allclose(rollout.old_logprob_BT[row, : len(token_T)], expected_T, atol=1e-5)
    assert "forward" not in model.model.__dict__


def test_the_check_leaves_no_gradient_and_no_trace_in_the_model() -> None:
    model = copy.deepcopy(make("llama")[0])
    assert isinstance(model, LlamaForCausalLM)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    policy = wrapped(model, make("llama")[1])
    state = torch.get_rng_state()
    rollout: Rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=SEED)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in policy.trainable)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not rollout.old_logprob_BT.requires_grad


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),  # linear maps that are no nn.Linear
        (
            "llama4_text",
            {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        ),  # not the router
        # not its grouped layer
        (
            "deepseek_v4",
            {"q_a_proj", "q_b_proj", "kv_proj", "o_b_proj", "gate_proj", "up_proj", "down_proj", "weights_proj"},
        ),
        ("mamba", {"in_proj", "x_proj", "dt_proj"}),  # not what the kernel reads without calling it
        ("modernbert-decoder", {"Wi", "Wo", "q_proj", "k_proj", "v_proj", "dense"}),  # its decoder is its head
    ],
)
def test_adapters_are_added_to_linear_maps(name: str, targets: set[str]) -> None:
    model, _ = families()[name].make()
    assert {path.rpartition(".")[2] for path in language_linears(model)} == targets


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("name", daily(["llama", "qwen2.5-vl", "gemma3"], "llama", "qwen2.5-vl"))
@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 2.0}], ids=["full", "lora"])
def test_rounding_in_bfloat16_speaks_against_no_way(name: str, lora: dict[str, Any] | None) -> None:
    model, processor = make(name)
    policy = wrapped(copy.deepcopy(model).bfloat16(), processor, lora=lora)
    policy.rollout(prompts_of(name), group_size=2, seed=SEED)
    assert policy.shares_prefix
