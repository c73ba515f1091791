"""Every tiny masked model by name: stock classes, two layers, large weights from a seed."""

# The bindings of `tokenizers` carry wrong annotations.

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    EuroBertConfig,
    EuroBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tests.tiny import chat_templates, chat_tokenizers
from tests.tiny.text_encoders import clip_projected_encoder
from tests.tiny.tokenizers import clip_tokenizer

MASK = "<|mask|>"
CODES = 12
SIDE = 4
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A masked model.

    Attributes:
        build: makes what a MaskedPolicy wraps.
        settings: those that it takes.
    """

    build: Callable[[], tuple[Any, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)


def make(name: str, seed: int = 0) -> tuple[Any, ...]:
    """The parts of a policy, float32 and in eval mode; the caller's random state is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TINY[name].build()


def tokenizer() -> PreTrainedTokenizerBase:
    """ChatML with a token for what is hidden."""
    return chat_tokenizers.build(
        [*chat_tokenizers.CHATML, MASK], chat_templates.QWEN, mask_token=MASK, **chat_tokenizers.CHATML_ENDS
    )


def eurobert(extra: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Llama's blocks without the causal mask, which is what LLaDA is made of."""
    words = tokenizer()
    return _text(EuroBertForMaskedLM(EuroBertConfig(vocab_size=len(words) + extra, **SIZES, **_ids(words)))), words


def modernbert() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Local and global attention in turn."""
    words = tokenizer()
    config = ModernBertConfig(vocab_size=len(words), **SIZES, **_ids(words), local_attention=8)
    return _text(ModernBertForMaskedLM(config)), words


def bert() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Learned positions, and logits from the embeddings."""
    words = tokenizer()
    return _text(BertForMaskedLM(BertConfig(vocab_size=len(words), **SIZES, **_ids(words)))), words


def codes() -> tuple[Any, ...]:
    """A language model whose last tokens are the codes of images, as MMaDA has them."""
    return *eurobert(extra=CODES), vq_model()


def amused() -> tuple[AmusedPipeline]:
    """aMUSEd: captions to codes to pixels."""
    words = clip_tokenizer()
    encoder = clip_projected_encoder(words)
    transformer = UVit2DModel(
        hidden_size=32,
        cond_embed_dim=encoder.config.projection_dim,
        micro_cond_encode_dim=4,
        micro_cond_embed_dim=20,
        encoder_hidden_size=encoder.config.hidden_size,
        vocab_size=CODES + 1,
        codebook_size=CODES,
        in_channels=16,
        block_out_channels=32,
        num_res_blocks=1,
        block_num_heads=2,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        sample_size=SIDE,
    )
    _widen(transformer, 0.3)
    parts: dict[str, Any] = {
        "vqvae": vq_model(),
        "tokenizer": words,
        "text_encoder": encoder.eval(),
        "transformer": transformer.eval(),
        "scheduler": AmusedScheduler(mask_token_id=CODES),
    }
    pipeline = AmusedPipeline(**parts)
    pipeline.set_progress_bar_config(disable=True)
    return (pipeline,)


def vq_model() -> VQModel:
    """A decoder of 2 x 2 pixels a code."""
    model = VQModel(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        num_vq_embeddings=CODES,
        norm_num_groups=2,
        lookup_from_codebook=True,
    )
    nn.init.normal_(model.quantize.embedding.weight)
    return model.eval()


def _ids(words: PreTrainedTokenizerBase) -> dict[str, Any]:
    named = {name: getattr(words, name) for name in ("mask_token_id", "eos_token_id", "pad_token_id")}
    return {"bos_token_id": None, **named}


def _text(model: PreTrainedModel) -> PreTrainedModel:
    _widen(model, 0.15)
    return model.float().eval()


@torch.no_grad()
def _widen(model: nn.Module, std: float) -> None:
    """Weights wide enough that a token changes what is likely elsewhere."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            nn.init.normal_(module.weight, std=std)


TINY = {
    "eurobert": Tiny(build=eurobert, settings={"length": 6}),
    "modernbert": Tiny(build=modernbert, settings={"length": 6, "num_steps": 3}),
    "bert": Tiny(build=bert, settings={"length": 6, "block_length": 3, "num_steps": 4, "order": "random"}),
    "codes": Tiny(
        build=codes,
        settings={
            "codes": {"offset": len(tokenizer()), "number": CODES, "height": SIDE, "width": SIDE},
            "num_steps": 5,
            "schedule": "cosine",
        },
    ),
    "amused": Tiny(build=amused, settings={"num_steps": 5}),
}


CODE = """
from transformers import EuroBertConfig, EuroBertForMaskedLM, PreTrainedModel


class OwnConfig(EuroBertConfig):
    model_type = "own_masked"


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.inner = EuroBertForMaskedLM(config)
        self.post_init()

    def get_output_embeddings(self):
        return self.inner.lm_head

    def forward(self, input_ids, attention_mask=None):
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)
"""


def save_with_code(folder: Path) -> None:
    """A checkpoint with the code of its class in its folder, as LLaDA's on the hub: only AutoModel is registered."""
    model, words = make("eurobert")
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "own.py").write_text(CODE)
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own_masked", "auto_map": named}))
    tensors = load_file(folder / "model.safetensors")
    save_file({f"inner.{name}": each for name, each in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
