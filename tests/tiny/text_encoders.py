"""Tiny text encoders of the classes the pipelines ship with; features are ``WIDTH`` wide by default.

Weights have a larger spread than for training, so that two prompts give clearly different features in every layer.
"""

# A tokenizer's ids are annotated with every form that any tokenizer could give them.

from __future__ import annotations

from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Gemma2Config,
    Gemma2Model,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

WIDTH = 32
INIT_STD = 0.3


def clip_encoder(tokenizer: PreTrainedTokenizerBase) -> CLIPTextModel:
    """CLIP text transformer."""
    return CLIPTextModel(_clip_config(tokenizer))


def clip_projected_encoder(tokenizer: PreTrainedTokenizerBase) -> CLIPTextModelWithProjection:
    """CLIP text transformer that also projects its pooled feature."""
    return CLIPTextModelWithProjection(_clip_config(tokenizer))


def t5_encoder(tokenizer: PreTrainedTokenizerBase, *, width: int = WIDTH) -> T5EncoderModel:
    """T5 v1.1 encoder."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=width,
            d_kv=16,
            d_ff=48,
            num_layers=2,
            num_heads=2,
            feed_forward_proj="gated-gelu",
        )
    )


def umt5_encoder(tokenizer: PreTrainedTokenizerBase) -> UMT5EncoderModel:
    """UMT5 encoder, with relative positions in every layer."""
    return UMT5EncoderModel(
        UMT5Config(vocab_size=len(tokenizer), d_model=WIDTH, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
    )


def gemma2_encoder(tokenizer: PreTrainedTokenizerBase) -> Gemma2Model:
    """Gemma 2 decoder without a head."""
    return Gemma2Model(
        Gemma2Config(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=64,
            max_position_embeddings=1024,
            initializer_range=INIT_STD,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def qwen3_encoder(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """Qwen3 language model of three layers."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=1024,
            initializer_range=INIT_STD,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def qwen2_5_vl_encoder(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLForConditionalGeneration:
    """Qwen2.5-VL with a vision tower of one layer."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "initializer_range": INIT_STD,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [0],
    }
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))


def mistral3_encoder(tokenizer: PreTrainedTokenizerBase) -> Mistral3ForConditionalGeneration:
    """Mistral 3 of three layers with a Pixtral vision tower of one."""
    text = MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=None,
        max_position_embeddings=1024,
        initializer_range=INIT_STD,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = PixtralVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, patch_size=14, image_size=56
    )
    return Mistral3ForConditionalGeneration(
        Mistral3Config(
            text_config=text,
            vision_config=vision,
            image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),  # pyrefly: ignore[bad-argument-type]
        )
    )


def _clip_config(tokenizer: PreTrainedTokenizerBase) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=48,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        hidden_act="quick_gelu",
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
