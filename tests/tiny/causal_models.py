"""The causal language models of a few families, two layers each, for a tokenizer."""

from __future__ import annotations

from typing import Any

from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

WIDTH = 64
HEAD_WIDTH = 16
TEXT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
WINDOW = 8  # tokens; shorter than any prompt under a chat template


def llama(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Embeddings tied to the head."""
    return LlamaForCausalLM(LlamaConfig(**text(tokenizer), tie_word_embeddings=True))


def qwen2(tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """Biases on queries, keys and values."""
    return Qwen2ForCausalLM(Qwen2Config(**text(tokenizer)))


def qwen3(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """Norms on queries and keys."""
    return Qwen3ForCausalLM(Qwen3Config(**text(tokenizer), head_dim=HEAD_WIDTH))


def qwen3_5(tokenizer: PreTrainedTokenizerBase) -> Qwen3_5ForCausalLM:
    """A layer of linear attention with a short convolution, then one of full attention."""
    return Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(
            **text(tokenizer),
            head_dim=HEAD_WIDTH,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            layer_types=["linear_attention", "full_attention"],
        )
    )


def gemma2(tokenizer: PreTrainedTokenizerBase) -> Gemma2ForCausalLM:
    """Soft caps on scores and logits, low enough to bend them; a sliding window in one layer."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            **text(tokenizer),
            head_dim=HEAD_WIDTH,
            query_pre_attn_scalar=HEAD_WIDTH,
            sliding_window=WINDOW,
            final_logit_softcapping=5.0,
            attn_logit_softcapping=5.0,
        )
    )


def mistral(tokenizer: PreTrainedTokenizerBase) -> MistralForCausalLM:
    """A sliding window in every layer."""
    return MistralForCausalLM(MistralConfig(**text(tokenizer), sliding_window=WINDOW))


def cohere(tokenizer: PreTrainedTokenizerBase) -> CohereForCausalLM:
    """Logits multiplied by one half after the head."""
    return CohereForCausalLM(CohereConfig(**text(tokenizer), logit_scale=0.5))


def text(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Arguments of a text configuration."""
    return TEXT | {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
