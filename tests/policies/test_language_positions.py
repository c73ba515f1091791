"""Positions that change with the length of a row, and the noise of bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.encoding import position_switch
from mmgrpo.policies.language.parity_check import perturbed_rounding
from torch import Tensor
from transformers import Phi3Config, Phi3ForCausalLM, Qwen2Config

from mmgrpo.errors import DataError, PolicyError
from mmgrpo.types import Prompt, Rollout
from tests.policies.contract import values
from tests.tiny.chat_tokenizers import llama
from tests.tiny.language_models import make

SHORT = "what number is this"  # 13 tokens
MEDIUM = "how many red squares do you see in the picture on the left and how many on the right"  # 28
LONG = " ".join([MEDIUM] * 3)  # more than 32
TEXTS = ("what number is this", "how many red squares do you see in the picture on the left")


def phi(**settings: Any) -> LanguagePolicy:
    """A model of the Phi-3 family whose LongRoPE has other factors from 33 tokens on."""
    tokenizer = llama()
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        original_max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        initializer_range=0.3,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
            "original_max_position_embeddings": 32,
        },
    )
    return LanguagePolicy(Phi3ForCausalLM(config).eval(), tokenizer, {"max_new_tokens": 8, "chat": False, **settings})


def plain_gap(policy: LanguagePolicy, rollout: Rollout) -> float:
    """The largest difference from the model's call on each row alone, in nats."""
    gap = 0.0
    for row, completion in enumerate(rollout.trace.completions):
        prompt_P = rollout.trace.prompts[rollout.trace.prompt_of_B[row]].ids_P
        ids_1L = torch.cat([prompt_P, completion.token_T])[None]
        with torch.no_grad():
            logprob_TV = policy.model(input_ids=ids_1L).logits[0, len(prompt_P) - 1 : -1].float().log_softmax(-1)
        logprob_T = logprob_TV.gather(-1, completion.token_T[:, None])[:, 0]
        gap = max(gap, float((logprob_T - rollout.old_logprob_BT[row, : len(logprob_T)]).abs().max()))
    return gap


def test_rows_that_could_pass_the_switch_are_an_error_with_the_length_that_fits() -> None:
    policy = phi()
    policy.rollout([Prompt(SHORT)], group_size=2, seed=0)
    with pytest.raises(DataError, match=r"takes 28 tokens, and its row could pass 32, .*max_new_tokens to 4 or less"):
        policy.rollout([Prompt(MEDIUM)], group_size=2, seed=1)
    phi(max_new_tokens=4).rollout([Prompt(MEDIUM)], group_size=2, seed=1)


@pytest.mark.parametrize("settings", [{}, {"share_prefix": False}])
def test_rows_on_both_sides_of_the_switch_share_no_batch(settings: dict[str, Any]) -> None:
    policy = phi(**settings)
    rollout = policy.rollout([Prompt(LONG), Prompt(SHORT), Prompt(LONG + " left"), Prompt("is")], group_size=2, seed=0)
    assert plain_gap(policy, rollout) < 1e-4
    again_BT = values(policy, rollout)
    assert float((again_BT - rollout.old_logprob_BT)[rollout.mask_BT].abs().max()) < 1e-4


def test_the_switch_is_that_of_longrope_alone() -> None:
    assert position_switch(phi().model.config) == 32
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
    assert position_switch(Qwen2Config(rope_parameters=yarn)) is None


def stretched(policy: LanguagePolicy, length: int) -> None:
    """Positions of rows longer than ``length`` are halved, as by remote code that does not declare it."""
    rotary: Any = policy.model.model.rotary_emb
    forward = rotary.forward

    def scaled(x: Tensor, position_ids: Tensor, **kwargs: Any) -> Any:
        beyond = int(position_ids.max()) >= length
        return forward(x, position_ids / 2 if beyond else position_ids, **kwargs)

    rotary.forward = scaled


def test_a_longer_row_later_in_a_run_is_compared_again() -> None:
    model, tokenizer = make("qwen2")
    for parameter in model.parameters():
        parameter.data *= 4  # so that positions matter
    policy = LanguagePolicy(model, tokenizer, {"max_new_tokens": 8, "chat": False})
    stretched(policy, 40)
    policy.rollout([Prompt(SHORT)], group_size=4, seed=0)
    policy.rollout([Prompt("is this")], group_size=4, seed=1)
    with pytest.raises(PolicyError, match=r"in a row of \d+ tokens: its attention or its positions are not exact"):
        policy.rollout([Prompt(" ".join(["how"] * 38))], group_size=4, seed=2)


def bfloat16(name: str, seed: int) -> LanguagePolicy:
    model, tokenizer = make(name, seed=seed)
    return LanguagePolicy(model.to(torch.bfloat16), tokenizer, {"max_new_tokens": 8, "lora": {"rank": 4}})  # pyrefly: ignore[bad-argument-type]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("qwen2", 0),
        ("mistral", 1),
        *(
            pytest.param(name, seed, marks=pytest.mark.nightly)
            for name in ("qwen2", "llama", "qwen3", "mistral", "gemma2")
            for seed in range(12)
        ),
    ],
)
def test_rounding_of_bfloat16_rejects_no_model(name: str, seed: int) -> None:
    policy = bfloat16(name, seed)
    rollout = policy.rollout([Prompt(text) for text in TEXTS], group_size=2, seed=0)
    assert bool(rollout.old_logprob_BT.isfinite().all())


@pytest.mark.nightly
def test_a_fault_larger_than_rounding_is_found_in_bfloat16() -> None:
    model, tokenizer = make("qwen2", seed=1)
    for parameter in model.parameters():
        parameter.data *= 4
    policy = LanguagePolicy(model.to(torch.bfloat16), tokenizer, {"max_new_tokens": 8, "lora": {"rank": 4}})  # pyrefly: ignore[bad-argument-type]
    stretched(policy, 32)
    with pytest.raises(PolicyError, match=r"no forward path is exact|positions are not exact"):
        policy.rollout([Prompt(text) for text in TEXTS], group_size=2, seed=0)


def test_other_roundings_move_each_product_by_one_step() -> None:
    linear = torch.nn.Linear(4, 8).to(torch.bfloat16)
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    before = linear(x)
    with perturbed_rounding(linear, 0):
        moved = linear(x)
    steps = ((moved.float() - before.float()) / before.float()).abs()
    assert 0 < float(steps.max()) <= torch.finfo(torch.bfloat16).eps
    assert torch.equal(linear(x), before)
