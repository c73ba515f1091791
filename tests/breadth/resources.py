"""Parts of a pipeline that are no modules with a configuration: tokenizers, processors, stand-ins."""

# The Fast names are aliases that transformers 5 makes at import.

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from diffusers.pipelines.deprecated.paint_by_example.image_encoder import PaintByExampleImageEncoder
from torch import nn
from transformers import (
    ByT5Tokenizer,
    ClapFeatureExtractor,
    CLIPImageProcessor,
    CLIPProcessor,
    CLIPVisionConfig,
    DPTImageProcessor,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    Siglip2ImageProcessor,
    SiglipImageProcessor,
)

from tests.tiny import chat_tokenizers, processors, tokenizers, vision_language_models

VOCABULARY = 4096  # of every text encoder: more than any tokenizer here knows
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ part.text if part.type == 'text' else '[IMG]' }}{% endfor %}"
    "{% endif %}\n{% endfor %}"
)


class Passes(nn.Module):
    """A safety checker or a watermark that lets everything through."""

    def __init__(self) -> None:
        super().__init__()
        self._at = nn.Parameter(torch.zeros(1), requires_grad=False)

    @property
    def device(self) -> torch.device:
        """The device of its parameter."""
        return self._at.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its one number."""
        return self._at.dtype

    def check_text_safety(self, prompt: str) -> bool:
        """Safe."""
        return True

    def check_video_safety(self, video: Any) -> Any:
        """The video as it is."""
        return video

    def apply_watermark(self, images: Any, sample_size: int | None = None) -> Any:
        """The images without one."""
        return images


def _general(**marks: Any) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the marks that a family's pipelines ask for."""
    backend = deepcopy(tokenizers.mistral_tokenizer().backend_tokenizer)
    backend.no_padding()  # the side of earlier calls of this tokenizer would be that of the new one
    backend.no_truncation()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=512,
        **marks,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _clip_processor() -> CLIPProcessor:
    side = {"height": 32, "width": 32}
    return CLIPProcessor(CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side), tokenizers.clip_tokenizer())


def _example_encoder() -> PaintByExampleImageEncoder:
    config = CLIPVisionConfig(
        hidden_size=32,
        image_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=5,
        patch_size=4,
        projection_dim=32,
    )
    return PaintByExampleImageEncoder(config)


def _roberta() -> RobertaTokenizer:
    return RobertaTokenizer(tokenizer_object=_general().backend_tokenizer, model_max_length=77)


RESOURCES: dict[str, Callable[[], Any]] = {
    "byt5": ByT5Tokenizer,
    "chatglm": _general,
    "clap_features": ClapFeatureExtractor,
    "clip": tokenizers.clip_tokenizer,
    "clip_images": lambda: _clip_processor().image_processor,
    "clip_processor": _clip_processor,
    "dpt_images": lambda: DPTImageProcessor(size={"height": 32, "width": 32}),
    "example_encoder": _example_encoder,
    "gemma": tokenizers.gemma_tokenizer,
    "general": _general,
    "glm_image": _general,
    "gpt2": _general,
    "llama": _general,
    "mistral": tokenizers.mistral_tokenizer,
    "passes": Passes,
    "qwen": tokenizers.qwen_tokenizer,
    "qwen_vision": chat_tokenizers.qwen_vision,
    "qwen2_vl_model": lambda: vision_language_models.qwen2_vl(chat_tokenizers.qwen_vision()),
    "qwen2_5_vl_model": lambda: vision_language_models.qwen2_5_vl(chat_tokenizers.qwen_vision()),
    "qwen3_vl_model": lambda: vision_language_models.qwen3_vl(chat_tokenizers.qwen_vision()),
    "qwen2_5_vl": processors.qwen2_5_vl,
    "qwen3_vl": processors.qwen3_vl,
    "roberta": _roberta,
    "siglip2_images": lambda: Siglip2ImageProcessor(patch_size=8, max_num_patches=16),
    "siglip_images": lambda: SiglipImageProcessor(size={"height": 32, "width": 32}),
    "t5": tokenizers.t5_tokenizer,
    "bert": tokenizers.t5_tokenizer,
    "xlm_roberta": tokenizers.t5_tokenizer,
}
