"""Every tiny language and vision-language model by name: stock classes, two layers, weights from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from tests.tiny import causal_models, chat_tokenizers, processors, vision_language_models

Processor = PreTrainedTokenizerBase | ProcessorMixin

LOGIT_STD = 2.5  # over the vocabulary: the likeliest token gets about one half, so a changed token or pixel shows
GEMMA_LOGIT_STD = 1.3  # the head is the embedding, which Gemma enlarges: more, and a token can only repeat itself
EMBEDDING_STD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A model with its processor, built in well under a second.

    Attributes:
        processor: makes the processor, or the tokenizer of a model that only reads text.
        model: makes the model for that tokenizer.
        ends: the tokens that end a generation.
        images: the model takes images.
        several: it takes several images in one prompt.
        videos: it takes videos.
        needs_image: it takes no prompt without an image.
        logit_std: standard deviation of a position's logits over the vocabulary, before scales and caps.
    """

    processor: Callable[[], Processor]
    model: Callable[[PreTrainedTokenizerBase], PreTrainedModel]
    ends: tuple[str, ...]
    images: bool = False
    several: bool = False
    videos: bool = False
    needs_image: bool = False
    logit_std: float = LOGIT_STD


def make(name: str, seed: int = 0) -> tuple[PreTrainedModel, Processor]:
    """A model, float32 and in eval mode, and its processor; the caller's random state is untouched."""
    tiny = TINY[name]
    processor = tiny.processor()
    tokenizer = tokenizer_of(processor)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tiny.model(tokenizer)
        _draw(model, tiny.logit_std)
    generation = model.generation_config
    assert generation is not None
    ends = [vision_language_models.token_id(tokenizer, end) for end in tiny.ends]
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends
    generation.pad_token_id = tokenizer.pad_token_id
    generation.bos_token_id = tokenizer.bos_token_id
    return model.float().eval(), processor


def save(name: str, folder: Path) -> None:
    """Writes a model and its processor in the layout of a published checkpoint."""
    for part in make(name):
        part.save_pretrained(folder)


def tokenizer_of(processor: Processor) -> PreTrainedTokenizerBase:
    """The processor's tokenizer; a tokenizer is its own."""
    return processor if isinstance(processor, PreTrainedTokenizerBase) else processor.tokenizer


@torch.no_grad()
def _draw(model: PreTrainedModel, logit_std: float) -> None:
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
    head.weight.normal_(std=logit_std / math.sqrt(head.in_features))


QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
GEMMA_ENDS = ("<eos>", "<end_of_turn>")
LLAMA_ENDS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")

TINY: dict[str, Tiny] = {
    "llama": Tiny(processor=chat_tokenizers.llama, model=causal_models.llama, ends=LLAMA_ENDS),
    "qwen2": Tiny(processor=chat_tokenizers.qwen, model=causal_models.qwen2, ends=QWEN_ENDS),
    "qwen3": Tiny(processor=chat_tokenizers.qwen3, model=causal_models.qwen3, ends=QWEN_ENDS),
    "qwen3.5": Tiny(processor=chat_tokenizers.qwen3, model=causal_models.qwen3_5, ends=QWEN_ENDS),
    "gemma2": Tiny(processor=chat_tokenizers.gemma2, model=causal_models.gemma2, ends=GEMMA_ENDS),
    "mistral": Tiny(processor=chat_tokenizers.mistral, model=causal_models.mistral, ends=("</s>",)),
    "cohere": Tiny(processor=chat_tokenizers.cohere, model=causal_models.cohere, ends=("<|END_OF_TURN_TOKEN|>",)),
    "qwen2-vl": Tiny(
        processor=processors.qwen2_vl,
        model=vision_language_models.qwen2_vl,
        ends=QWEN_ENDS,
        images=True,
        several=True,
        videos=True,
    ),
    "qwen2.5-vl": Tiny(
        processor=processors.qwen2_5_vl,
        model=vision_language_models.qwen2_5_vl,
        ends=QWEN_ENDS,
        images=True,
        several=True,
        videos=True,
    ),
    "qwen3-vl": Tiny(
        processor=processors.qwen3_vl,
        model=vision_language_models.qwen3_vl,
        ends=QWEN_ENDS,
        images=True,
        several=True,
        videos=True,
    ),
    "qwen3.5-vl": Tiny(
        processor=processors.qwen3_vl,
        model=vision_language_models.qwen3_5_vl,
        ends=QWEN_ENDS,
        images=True,
        several=True,
        videos=True,
    ),
    "idefics3": Tiny(
        processor=processors.idefics3,
        model=vision_language_models.idefics3,
        ends=("<end_of_utterance>", "<|im_end|>"),
        images=True,
        several=True,
    ),
    "llava-next": Tiny(
        processor=processors.llava_next,
        model=vision_language_models.llava_next,
        ends=("</s>",),
        images=True,
        several=True,
    ),
    "llava-onevision": Tiny(
        processor=processors.llava_onevision,
        model=vision_language_models.llava_onevision,
        ends=("<|im_end|>",),
        images=True,
        several=True,
        videos=True,
    ),
    "internvl": Tiny(
        processor=processors.internvl,
        model=vision_language_models.internvl,
        ends=("<|im_end|>",),
        images=True,
        several=True,
        videos=True,
    ),
    "gemma3": Tiny(
        processor=processors.gemma3,
        model=vision_language_models.gemma3,
        ends=GEMMA_ENDS,
        images=True,
        several=True,
        logit_std=GEMMA_LOGIT_STD,
    ),
    "paligemma": Tiny(
        processor=processors.paligemma,
        model=vision_language_models.paligemma,
        ends=("<eos>",),
        images=True,
        several=True,
        needs_image=True,
        logit_std=GEMMA_LOGIT_STD,
    ),
}

NAMES = tuple(TINY)
IMAGES = tuple(name for name in NAMES if TINY[name].images)
SEVERAL_IMAGES = tuple(name for name in NAMES if TINY[name].several)
VIDEOS = tuple(name for name in NAMES if TINY[name].videos)
