"""Tiny random checkpoints of the judge models of rewards, in folders of the published layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    Dinov2Config,
    Dinov2Model,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2ImageProcessor,
    Owlv2Processor,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTImageProcessor,
    OwlViTProcessor,
    ViTImageProcessor,
)

from tests.tiny import tokenizers

SIDE = 16  # pixels a side
WIDTH = 32
DRAW_STD = 0.2  # wider than for training, so that two images and two texts differ clearly

OPEN_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": SIDE, "layers": 2, "width": 32, "patch_size": 8, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


def save_clip(folder: Path, seed: int = 0) -> Path:
    """CLIP of transformers with its processor; features 24 wide."""
    tokenizer = tokenizers.clip_tokenizer()
    tower = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = tower | {"vocab_size": len(tokenizer), "max_position_embeddings": 77, "projection_dim": 24}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    vision = tower | {"image_size": SIDE, "patch_size": 8, "projection_dim": 24}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIPModel(CLIPConfig(text_config=text | ids, vision_config=vision, projection_dim=24))
        redraw(model)
    model.save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def save_dino(folder: Path, seed: int = 0) -> Path:
    """DINOv2 with its image processor; features 32 wide."""
    tower: dict[str, Any] = {"hidden_size": WIDTH, "mlp_ratio": 2, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Dinov2Model(Dinov2Config(**tower, image_size=SIDE, patch_size=8))
        redraw(model)
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


def save_encoder(folder: Path, seed: int = 0) -> Path:
    """BERT with its tokenizer; hidden states 32 wide."""
    tokenizer = tokenizers.clip_tokenizer()
    tower: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes: dict[str, Any] = {"num_attention_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
        model = BertModel(BertConfig(**tower, **sizes, pad_token_id=tokenizer.pad_token_id))
        redraw(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_owl(folder: Path, version: int = 2, seed: int = 0) -> Path:
    """OWL-ViT (1) or OWLv2 (2) with its processor, on images of 16 x 16 pixels."""
    tokenizer = tokenizers.clip_tokenizer()
    tower = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text = tower | {"vocab_size": len(tokenizer), "max_position_embeddings": 77} | ids
    settings: dict[str, Any] = {
        "text_config": text,
        "vision_config": tower | {"image_size": SIDE, "patch_size": 4},
        "projection_dim": WIDTH,
    }
    size = {"height": SIDE, "width": SIDE}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if version == 1:
            model, images = OwlViTForObjectDetection(OwlViTConfig(**settings)), OwlViTImageProcessor(size=size)
            processor: Any = OwlViTProcessor(images, tokenizer)
        else:
            model, images = Owlv2ForObjectDetection(Owlv2Config(**settings)), Owlv2ImageProcessor(size=size)
            processor = Owlv2Processor(images, tokenizer)
        redraw(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_grounding_dino(folder: Path, words: str, seed: int = 0) -> Path:
    """Grounding DINO of two layers, with a Swin of one block a stage, that reads these words and "." as tokens."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate([*marks, ".", *words.split()])})
    text = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": len(tokenizer),
        "model_type": "bert",
    }
    backbone = {
        "model_type": "swin",
        "image_size": 64,
        "window_size": 4,
        "embed_dim": 16,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 1, 2, 2],
        "out_features": ["stage2", "stage3", "stage4"],
    }
    settings: dict[str, Any] = {
        "backbone_config": backbone,
        "text_config": text,
        "d_model": WIDTH,
        "encoder_layers": 2,
        "encoder_ffn_dim": 48,
        "encoder_attention_heads": 2,
        "decoder_layers": 2,
        "decoder_ffn_dim": 48,
        "decoder_attention_heads": 2,
        "num_queries": 12,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GroundingDinoForObjectDetection(GroundingDinoConfig(**settings))
    model.save_pretrained(folder)
    images = GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})
    GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def save_open_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP of open_clip as ``local-dir:`` reads it: configuration and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": OPEN_CLIP, "preprocess_cfg": {}}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = open_clip.CLIP(**json.loads(json.dumps(OPEN_CLIP)))
        redraw(model)
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    return folder


def save_head(file: Path, width: int, prefix: str = "layers.", seed: int = 0) -> Path:
    """The linear layers of the aesthetic predictor in their published numbering: 0, 2, 4, 6, 7; dropout between."""
    torch.save(head_tensors(width, prefix, seed), file)
    return file


def head_tensors(width: int, prefix: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """The state dict of such a head."""
    generator = torch.Generator().manual_seed(seed)
    widths = [width, 12, 10, 8, 6, 1]
    tensors = {}
    for number, inner, outer in zip((0, 2, 4, 6, 7), widths, widths[1:], strict=False):
        tensors[f"{prefix}{number}.weight"] = torch.randn(outer, inner, generator=generator) / inner**0.5
        tensors[f"{prefix}{number}.bias"] = torch.randn(outer, generator=generator)
    return tensors


@torch.no_grad()
def redraw(model: torch.nn.Module) -> None:
    """Every matrix from a wide distribution; scales and shifts of norms and single numbers as they are."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=DRAW_STD)
