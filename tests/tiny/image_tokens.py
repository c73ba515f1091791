"""Tiny models of image tokens: the unified families of transformers, and a Llama over codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from diffusers import VQModel
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    ChameleonImageProcessor,
    ChameleonProcessor,
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tests.tiny.causal_models import TEXT

WORDS = tuple("a red fox two blue squares on the table what is shown".split()) + tuple("0123456789*")  # noqa: SIM905
PAD, START, END, IMAGE, BEGIN, STOP = "<pad>", "<s>", "</s>", "<image>", "<boi>", "<eoi>"
GRID = (3, 4)  # of the models whose grid is free
SIDE = 4  # of the others, in codes
NUM_CODES = 24
FACTOR = 2  # pixels of a code, a side


def _tokenizer(more: Sequence[str] = (), *, starts: bool = True) -> PreTrainedTokenizerFast:
    """Words of one token each, and further tokens after them."""
    specials = [PAD, START, END, IMAGE, BEGIN, STOP, *more]
    pieces = ["<unk>", *specials, *WORDS]
    tokenizer = Tokenizer(WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(specials)
    tokenizer.pre_tokenizer = Split(Regex(r"[a-z]+|[0-9*]"), behavior="removed", invert=True)
    if starts:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{START} $A", special_tokens=[(START, pieces.index(START))]
        )
    named = {"image_token": IMAGE, "boi_token": BEGIN, "eoi_token": STOP}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        unk_token="<unk>",
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        extra_special_tokens=named,
    )


def _ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def vq_model(channels: int = 3) -> VQModel:
    """The autoencoder of diffusers, two pixels a code."""
    return VQModel(
        in_channels=channels,
        out_channels=channels,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=4,
        num_vq_embeddings=NUM_CODES,
        vq_embed_dim=4,
    )


def janus() -> tuple[Any, Any, Any]:
    """Separate embeddings and a head for codes; a padded unconditional side."""
    tokenizer = _tokenizer()
    side = SIDE * FACTOR
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": FACTOR}
    config = JanusConfig(
        text_config={"model_type": "llama", **TEXT, "vocab_size": len(tokenizer), **_ids(tokenizer)},
        vision_config=vision | {"image_size": side, "projection_dim": 64, "num_image_tokens": SIDE**2},
        vq_config={
            "embed_dim": 4,
            "num_embeddings": NUM_CODES,
            "latent_channels": 4,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "projection_dim": 64,
            "image_token_embed_dim": 64,
        },
        image_token_id=tokenizer.get_vocab()[IMAGE],
        tie_word_embeddings=False,
    )
    model = JanusForConditionalGeneration(config)
    begin = tokenizer.get_vocab()[BEGIN]
    ids = _ids(tokenizer)
    model.generation_config = GenerationConfig(**ids, guidance_scale=5.0, generation_kwargs={"boi_token_id": begin})
    images = JanusImageProcessor(
        size={"height": side, "width": side}, min_size=1, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return model, JanusProcessor(images, tokenizer, num_image_tokens=SIDE**2), None


def emu3() -> tuple[Any, Any, Any]:
    """Codes in the vocabulary, a token at the end of each row, the size written in the prompt."""
    codes = [f"<|visual token {code:06d}|>" for code in range(NUM_CODES)]
    wrapper, end_of_file, end_of_line = "<|image token|>", "<|extra_201|>", "<|extra_200|>"
    tokenizer = _tokenizer([wrapper, end_of_file, end_of_line, *codes], starts=False)
    tokenizer.image_wrapper_token, tokenizer.eof_token = wrapper, end_of_file
    vocabulary = tokenizer.get_vocab()
    config = Emu3Config(
        text_config={**TEXT, "vocab_size": len(tokenizer), "attention_dropout": 0.1, **_ids(tokenizer)},
        vq_config={
            "codebook_size": NUM_CODES,
            "embed_dim": 4,
            "latent_channels": 4,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "hidden_size": 32,
            "attn_resolutions": [],
            "temporal_downsample_factor": 1,
        },
        vocabulary_map=vocabulary,
    )
    images = Emu3ImageProcessor(image_mean=[0.5] * 3, image_std=[0.5] * 3, spatial_factor=FACTOR)
    processor = Emu3Processor(images, tokenizer)
    processor.downsample_ratio, processor.ratio = FACTOR, f"{GRID[1]}:{GRID[0]}"
    processor.image_area = GRID[0] * GRID[1] * FACTOR**2
    return Emu3ForConditionalGeneration(config), processor, None


def chameleon() -> tuple[Any, Any, Any]:
    """Codes in the vocabulary that the model itself forbids; transformers has no decoder for them."""
    codes = [f"IMGIMG{''.join(chr(ord('A') + int(figure)) for figure in str(code))}Z" for code in range(NUM_CODES)]
    tokenizer = _tokenizer(codes)
    tokenizer.sep_token = END
    config = ChameleonConfig(
        **{**TEXT, "num_key_value_heads": 4},  # pyrefly: ignore[bad-argument-type]
        vocab_size=len(tokenizer),
        vq_config={
            "embed_dim": 4,
            "num_embeddings": NUM_CODES,
            "latent_channels": 4,
            "resolution": SIDE * FACTOR,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
        },
        vocabulary_map=tokenizer.get_vocab(),
        **_ids(tokenizer),
    )
    images = ChameleonImageProcessor()
    processor = ChameleonProcessor(images, tokenizer, image_seq_length=SIDE**2)
    return ChameleonForConditionalGeneration(config), processor, vq_model()


def llamagen() -> tuple[Any, Any, Any]:
    """A stock Llama whose vocabulary ends in the codes of a stock autoencoder of grey images."""
    tokenizer = _tokenizer()
    config = LlamaConfig(**TEXT, vocab_size=len(tokenizer) + NUM_CODES, **_ids(tokenizer))
    return LlamaForCausalLM(config), tokenizer, vq_model(channels=1)


FAMILIES: Mapping[str, Callable[[], tuple[Any, Any, Any]]] = {
    "janus": janus,
    "emu3": emu3,
    "chameleon": chameleon,
    "llamagen": llamagen,
}
"""Models, their processors, and the autoencoder, by family."""


@cache
def make(name: str) -> tuple[Any, Any, Any]:
    """A family's parts, with the same weights each time; weights are large enough for logits that differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor, autoencoder = FAMILIES[name]()
        for module in (model, autoencoder):
            for parameter in [] if module is None else module.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.2)
    return model.eval(), processor, autoencoder
