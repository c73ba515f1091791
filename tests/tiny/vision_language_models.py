"""The vision-language models of a few families, two layers in each tower, for a tokenizer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from tests.tiny.causal_models import HEAD_WIDTH, WIDTH, WINDOW, qwen3_5, text
from tests.tiny.processors import MERGE, PATCH, PINPOINTS, SIDE, TILE_PATCHES, TILE_TOKENS

VISION_WIDTH = 32
VISION: dict[str, Any] = {
    "hidden_size": VISION_WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
}
# Time, height and width of half a head. Read-only: a configuration writes its theta into a dict that it is given.
ROPE = MappingProxyType({"rope_type": "default", "mrope_section": [2, 3, 3]})
WINDOWED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


def qwen2_vl(tokenizer: PreTrainedTokenizerBase) -> Qwen2VLForConditionalGeneration:
    """Positions along time, height and width."""
    vision = QWEN_VISION | {"embed_dim": VISION_WIDTH, "hidden_size": WIDTH}
    config = Qwen2VLConfig(
        text_config=text(tokenizer) | {"rope_parameters": {**ROPE}}, vision_config=vision, **_qwen_ids(tokenizer)
    )
    return Qwen2VLForConditionalGeneration(config)


def qwen2_5_vl(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLForConditionalGeneration:
    """As Qwen2-VL, with windows of 16 pixels in the vision tower's first layer."""
    vision = QWEN_VISION | {
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 64,
        "out_hidden_size": WIDTH,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text(tokenizer) | {"rope_parameters": {**ROPE}}, vision_config=vision, **_qwen_ids(tokenizer)
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl(tokenizer: PreTrainedTokenizerBase) -> Qwen3VLForConditionalGeneration:
    """Interleaved positions; the first vision layer's features also enter the first text layer."""
    vision = QWEN_VISION | {
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 64,
        "out_hidden_size": WIDTH,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
    reading = text(tokenizer) | {"head_dim": HEAD_WIDTH, "rope_parameters": {**ROPE, "mrope_interleaved": True}}
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(text_config=reading, vision_config=vision, **_qwen_ids(tokenizer))
    )


def qwen3_5_vl(tokenizer: PreTrainedTokenizerBase) -> Qwen3_5ForConditionalGeneration:
    """The tower of Qwen3-VL without features between its layers; a layer of linear attention, then a full one."""
    vision = QWEN_VISION | {
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 64,
        "out_hidden_size": WIDTH,
        "num_position_embeddings": 16,
    }
    reading = qwen3_5(tokenizer).config.to_dict() | {
        "rope_parameters": {**ROPE, "mrope_interleaved": True, "partial_rotary_factor": 1.0}
    }
    return Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=reading, vision_config=vision, **_qwen_ids(tokenizer))
    )


def idefics3(tokenizer: PreTrainedTokenizerBase) -> Idefics3ForConditionalGeneration:
    """Idefics 3 and SmolVLM: pixels shuffled into tokens, then a Llama."""
    return Idefics3ForConditionalGeneration(
        Idefics3Config(
            text_config=text(tokenizer) | {"model_type": "llama"},
            vision_config=VISION,
            image_token_id=token_id(tokenizer, "<image>"),
            scale_factor=MERGE,
        )
    )


def llava_next(tokenizer: PreTrainedTokenizerBase) -> LlavaNextForConditionalGeneration:
    """CLIP's features before the last layer, a new-line embedding after each row, Mistral with a sliding window that
    reaches from the answer back to the image."""
    return LlavaNextForConditionalGeneration(
        LlavaNextConfig(
            text_config=text(tokenizer) | {"model_type": "mistral", "sliding_window": 3 * WINDOW},
            vision_config=VISION | {"model_type": "clip_vision_model", "projection_dim": VISION_WIDTH},
            image_token_index=token_id(tokenizer, "<image>"),
            image_grid_pinpoints=PINPOINTS,
            image_seq_length=TILE_PATCHES,
        )
    )


def llava_onevision(tokenizer: PreTrainedTokenizerBase) -> LlavaOnevisionForConditionalGeneration:
    """SigLIP's features, then a Qwen2."""
    return LlavaOnevisionForConditionalGeneration(
        LlavaOnevisionConfig(
            text_config=text(tokenizer) | {"model_type": "qwen2"},
            vision_config=VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
            image_token_index=token_id(tokenizer, "<image>"),
            video_token_index=token_id(tokenizer, "<video>"),
            image_grid_pinpoints=PINPOINTS,
        )
    )


def internvl(tokenizer: PreTrainedTokenizerBase) -> InternVLForConditionalGeneration:
    """A ViT whose patches are shuffled into a quarter as many tokens, then a Qwen2."""
    return InternVLForConditionalGeneration(
        InternVLConfig(
            text_config=text(tokenizer) | {"model_type": "qwen2"},
            vision_config=VISION | {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
            image_token_id=token_id(tokenizer, "<IMG_CONTEXT>"),
            image_seq_length=TILE_TOKENS,
            tie_word_embeddings=False,
        )
    )


def gemma3(tokenizer: PreTrainedTokenizerBase) -> Gemma3ForConditionalGeneration:
    """The tokens of an image attend to each other both ways; a sliding window in one layer."""
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=text(tokenizer) | WINDOWED | {"head_dim": HEAD_WIDTH, "query_pre_attn_scalar": HEAD_WIDTH},
            vision_config=VISION,
            mm_tokens_per_image=TILE_TOKENS,
            boi_token_index=token_id(tokenizer, "<start_of_image>"),
            eoi_token_index=token_id(tokenizer, "<end_of_image>"),
            image_token_index=token_id(tokenizer, "<image_soft_token>"),
            tie_word_embeddings=True,
        )
    )


def paligemma(tokenizer: PreTrainedTokenizerBase) -> PaliGemmaForConditionalGeneration:
    """Prompt tokens attend to each other both ways; later tokens are causal."""
    return PaliGemmaForConditionalGeneration(
        PaliGemmaConfig(
            text_config=text(tokenizer) | {"model_type": "gemma", "head_dim": HEAD_WIDTH},
            vision_config=VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
            image_token_index=token_id(tokenizer, "<image>"),
            projection_dim=WIDTH,
            hidden_size=WIDTH,
            vocab_size=len(tokenizer),
        )
    )


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """The id of one token of the vocabulary."""
    return tokenizer.get_vocab()[token]


def _qwen_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    names = {"image_token": "image_pad", "video_token": "video_pad"} | {
        f"vision_{end}_token": f"vision_{end}" for end in ("start", "end")
    }
    return {f"{key}_id": token_id(tokenizer, f"<|{token}|>") for key, token in names.items()}
