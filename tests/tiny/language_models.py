"""Every tiny language and vision-language model by name: stock classes, two layers, weights drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from . import chat_tokenizers, processors

Processor = PreTrainedTokenizerBase | ProcessorMixin

LOGIT_STD = 2.5  # of a model's logits: probabilities of 1e-6 to 0.5, so that a change of a token or a pixel shows
EMBEDDING_STD = 0.5

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A model with its processor, built in well under a second.

    Attributes:
        processor: makes the processor, or the tokenizer of a model that only reads text.
        model: makes the model for that tokenizer.
        ends: the tokens that end a generation.
        images: the model takes pictures.
        several: it takes several pictures in one prompt.
        videos: it takes videos.
    """

    processor: Callable[[], Processor]
    model: Callable[[PreTrainedTokenizerBase], PreTrainedModel]
    ends: tuple[str, ...]
    images: bool = False
    several: bool = False
    videos: bool = False


def make(name: str, seed: int = 0) -> tuple[PreTrainedModel, Processor]:
    """A model, float32 and in eval mode, and its processor; the caller's random state is untouched."""
    tiny = TINY[name]
    processor = tiny.processor()
    tokenizer = tokenizer_of(processor)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tiny.model(tokenizer)
        _draw(model)
    generation = model.generation_config
    assert generation is not None
    ends = [_id(tokenizer, end) for end in tiny.ends]
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends
    generation.pad_token_id = tokenizer.pad_token_id
    generation.bos_token_id = tokenizer.bos_token_id
    return model.float().eval(), processor


def save(name: str, folder: Path) -> None:
    """Writes a model and its processor as a published checkpoint lies in its folder."""
    for part in make(name):
        part.save_pretrained(folder)


def tokenizer_of(processor: Processor) -> PreTrainedTokenizerBase:
    """The processor's tokenizer; a tokenizer is its own."""
    return processor if isinstance(processor, PreTrainedTokenizerBase) else processor.tokenizer  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
def _draw(model: PreTrainedModel) -> None:
    """Weights that keep a signal's size, whatever a class's own scale and zeros; norms stay as they are."""
    for module in model.modules():
        match module:
            case nn.Linear() | nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
                fan_in = module.weight[0].numel()
                module.weight.normal_(std=1 / math.sqrt(fan_in))
                if module.bias is not None:
                    module.bias.normal_(std=0.1)
            case nn.Embedding():
                module.weight.normal_(std=EMBEDDING_STD)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            parameter.normal_(std=1 / math.sqrt(parameter.shape[0]))
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    head.weight.normal_(std=LOGIT_STD / math.sqrt(head.in_features))


def _ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    return tokenizer.get_vocab()[token]


def _llama(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TEXT, **_ids(tokenizer), tie_word_embeddings=True))


def _qwen2_5_vl(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLForConditionalGeneration:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": processors.PATCH,
        "spatial_merge_size": processors.MERGE,
        "out_hidden_size": TEXT["hidden_size"],
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=TEXT | _ids(tokenizer) | {"rope_parameters": rope},
            vision_config=vision,
            **_qwen_vision_ids(tokenizer),
        )
    )


def _qwen_vision_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    names = {"image_token": "image_pad", "video_token": "video_pad"} | {
        f"vision_{end}_token": f"vision_{end}" for end in ("start", "end")
    }
    return {f"{key}_id": _id(tokenizer, f"<|{token}|>") for key, token in names.items()}


def _gemma3(tokenizer: PreTrainedTokenizerBase) -> Gemma3ForConditionalGeneration:
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=TEXT
            | _ids(tokenizer)
            | {
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": processors.GEMMA_SIDE,
                "patch_size": processors.PATCH,
            },
            mm_tokens_per_image=processors.GEMMA_TOKENS,
            boi_token_index=_id(tokenizer, "<start_of_image>"),
            eoi_token_index=_id(tokenizer, "<end_of_image>"),
            image_token_index=_id(tokenizer, "<image_soft_token>"),
            tie_word_embeddings=True,
        )
    )


LLAMA_ENDS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
GEMMA_ENDS = ("<eos>", "<end_of_turn>")

TINY: dict[str, Tiny] = {
    "llama": Tiny(processor=chat_tokenizers.llama, model=_llama, ends=LLAMA_ENDS),
    "qwen2.5-vl": Tiny(
        processor=processors.qwen2_5_vl, model=_qwen2_5_vl, ends=QWEN_ENDS, images=True, several=True, videos=True
    ),
    "gemma3": Tiny(processor=processors.gemma3, model=_gemma3, ends=GEMMA_ENDS, images=True, several=True),
}

NAMES = tuple(TINY)
IMAGES = tuple(name for name in NAMES if TINY[name].images)
SEVERAL_IMAGES = tuple(name for name in NAMES if TINY[name].several)
VIDEOS = tuple(name for name in NAMES if TINY[name].videos)
