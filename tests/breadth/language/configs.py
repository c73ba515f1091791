"""A configuration of any family made small: sizes that it has by a usual name, at any depth, get small values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

WIDTH, HEADS, HEAD_WIDTH, LAYERS, INNER = 64, 4, 16, 2, 128

SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim"), WIDTH
    ),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "d_inner", "n_inner", "ffn_hidden_size"), INNER),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dff", "moe_intermediate_size", "mlp_dim"), INNER),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size", "expert_ffn_hidden_size"), INNER),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), LAYERS
    ),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "depth"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "v_head_dim", "qk_head_dim"), HEAD_WIDTH),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), HEAD_WIDTH // 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), HEAD_WIDTH),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "max_seq_len"), 512),
    **dict.fromkeys(("sliding_window", "attention_window_size"), 8),
    **dict.fromkeys(("type_vocab_size",), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "num_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 32),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("image_size",), 16),
    **dict.fromkeys(("patch_size",), 4),
    **dict.fromkeys(("lm_hidden_size", "cross_hidden_size", "projection_dim", "hidden_dim"), WIDTH),
    "moe_num_shared_experts": 1,
    "num_local_attention_heads": HEADS,
}
"""Names of sizes and what they become."""


def shrunk(config: PreTrainedConfig, **overrides: Any) -> PreTrainedConfig:
    """A new configuration of the same class, small; what is given is kept as it is, at the top.

    A value is replaced where the configuration has one by that name already: no family gets sizes it does not know.
    """
    return type(config)(**merged(small(config.to_dict()), overrides))


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Some values over others, at every depth."""
    result = dict(values)
    for name, value in overrides.items():
        deep = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if deep else value
    return result


def small(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, small."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("model_type", "transformers_version", "architectures", "dtype", "_name_or_path"):
            if name == "model_type":
                result[name] = value
            continue
        if name == "num_key_value_heads" and "kv_lora_rank" in values:
            result[name] = HEADS
        elif name == "head_dim" and ("qk_rope_head_dim" in values or value is None):
            result[name] = HEAD_WIDTH // 2 if "qk_rope_head_dim" in values else HEAD_WIDTH
        elif isinstance(value, Mapping) and ("model_type" in value or name.endswith("_config")):
            result[name] = small(value)
        elif name in SMALL and isinstance(value, (int, float)) and not isinstance(value, bool):
            result[name] = min(SMALL[name], value) if value > 0 else value
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types") and isinstance(
            value, (list, tuple)
        ):
            result[name] = list(dict.fromkeys(value))[:LAYERS] if len(set(value)) > 1 else list(value[:LAYERS])
        else:
            result[name] = value
    return result
