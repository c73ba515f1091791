"""ImageReward: BLIP encodes image and text with cross-attention, and linear layers predict a score.

The published checkpoint has the layout of the original BLIP code; its tensors are renamed for the classes of
transformers, and the model sizes are inferred from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from mmgrpo.errors import RewardError
from mmgrpo.types import Sample

from ..models.checkpoints import (
    Dtype,
    freeze,
    in_batches,
    linear_head,
    load_once,
    load_state_dict,
    require_positive,
    resolve_device,
    resolve_dtype,
)
from ..parsing.sample_images import score_image_texts

MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Mean and standard deviation of the raw scores over the authors' data; the published score is (raw - MEAN) / STD."""

MAX_TOKENS = 35
HEAD_WIDTH = 64  # width of every attention head, in both towers
PIXEL_MEAN, PIXEL_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

VISION_NAMES = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.", "encoder.layers."),
    (r"\.norm([12])\.", r".layer_norm\1."),
    (r"\.attn\.qkv\.", ".self_attn.qkv."),
    (r"\.attn\.proj\.", ".self_attn.projection."),
    (r"^norm\.", "post_layernorm."),
)
"""Parameter names of the vision tower in the BLIP code, and those of transformers."""


@final
class ImageReward:
    """Reward: ImageReward, trained on rankings of images for one prompt by trained annotators.

    Settings: ``checkpoint`` is the published ``ImageReward.pt``, a file or ``owner/repository/file`` of the hub;
    ``tokenizer`` a path or hub id of BERT's.
    Range: unbounded, about -2.5 to 2; 0 is the mean and 1 the standard deviation over the authors' data.
    Source: Xu et al. 2023 (ImageReward), arXiv:2304.05977, sec. 2.3 and the published scorer: the text is truncated at
    35 tokens, the image resized by its shorter side and center-cropped.
    Traps: text after the 35th token is ignored; the sides of wide images are cropped; optimizing it alone degrades
    images within a few hundred steps.
    """

    deterministic = True

    def __init__(
        self,
        checkpoint: str = "THUDM/ImageReward/ImageReward.pt",
        tokenizer: str = "google-bert/bert-base-uncased",
        text_column: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 16,
    ) -> None:
        self._checkpoint = checkpoint
        self._tokenizer = tokenizer
        self.text_column = text_column
        self._device = device
        self._dtype = resolve_dtype("ImageReward", dtype)
        self._batch_size = require_positive("ImageReward.batch_size", batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return score_image_texts(samples, self._score, self.text_column)

    def _score(self, images: list[Image.Image], texts: list[str]) -> list[float]:
        device = resolve_device(self._device)
        scorer: _Scorer = load_once(_scorer, self._checkpoint, self._tokenizer, device, self._dtype)

        def raw(batch_images: Sequence[Image.Image], batch_texts: Sequence[str]) -> Tensor:
            tokens = scorer.tokenizer(
                list(batch_texts), padding="max_length", truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            ).to(device)
            pixels = torch.stack([scorer.transform(image) for image in batch_images]).to(device, self._dtype)
            image_states = scorer.vision(pixel_values=pixels).last_hidden_state
            text_output = scorer.text(
                input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, encoder_hidden_states=image_states
            )
            return scorer.head(text_output.last_hidden_state[:, 0].float()).squeeze(1)

        return ((in_batches(raw, self._batch_size, images, texts) - MEAN) / STD).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scorer:
    vision: Any
    text: Any
    head: nn.Module
    transform: Any
    tokenizer: Any


def _scorer(checkpoint: str, tokenizer: str, device: torch.device, dtype: torch.dtype) -> _Scorer:
    from transformers import AutoTokenizer, BlipTextModel, BlipVisionModel

    state_dict = load_state_dict(checkpoint)
    vision_tensors, text_tensors = _part(state_dict, "blip.visual_encoder."), _part(state_dict, "blip.text_encoder.")
    vision_config, text_config = _vision_config(vision_tensors), _text_config(text_tensors)
    vision: nn.Module = BlipVisionModel(vision_config)
    text: nn.Module = BlipTextModel(text_config, add_pooling_layer=False)
    _fill(vision, {_renamed(name): value for name, value in vision_tensors.items()}, checkpoint)
    _fill(text, {name: value for name, value in text_tensors.items() if name != "embeddings.position_ids"}, checkpoint)
    side = vision_config.image_size
    transform = v2.Compose(
        [
            v2.Resize(side, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(side),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(PIXEL_MEAN, PIXEL_STD),
        ]
    )
    return _Scorer(
        vision=freeze(vision, device, dtype),
        text=freeze(text, device, dtype),
        head=freeze(linear_head(state_dict, "mlp.layers."), device),
        transform=transform,
        tokenizer=AutoTokenizer.from_pretrained(tokenizer),
    )


def _part(state_dict: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    part = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
    if not part:
        raise RewardError(f"the checkpoint has no {prefix}*, as ImageReward.pt has; it has {sorted(state_dict)[:5]}")
    return part


def _vision_config(tensors: Mapping[str, Tensor]) -> Any:
    from transformers import BlipVisionConfig

    width, _, patch, _ = tensors["patch_embed.proj.weight"].shape
    rows = round((tensors["pos_embed"].shape[1] - 1) ** 0.5)
    return BlipVisionConfig(
        hidden_size=width,
        intermediate_size=tensors["blocks.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=_num_layers(tensors, "blocks."),
        num_attention_heads=max(width // HEAD_WIDTH, 1),
        image_size=rows * patch,
        patch_size=patch,
        layer_norm_eps=1e-6,
    )


def _text_config(tensors: Mapping[str, Tensor]) -> Any:
    from transformers import BlipTextConfig

    vocabulary, width = tensors["embeddings.word_embeddings.weight"].shape
    return BlipTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        encoder_hidden_size=tensors["encoder.layer.0.crossattention.self.key.weight"].shape[1],
        intermediate_size=tensors["encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=_num_layers(tensors, "encoder.layer."),
        num_attention_heads=max(width // HEAD_WIDTH, 1),
        max_position_embeddings=tensors["embeddings.position_embeddings.weight"].shape[0],
        is_decoder=True,  # enables cross-attention; the mask is that of an encoder
    )


def _num_layers(tensors: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in tensors if name.startswith(prefix)})


def _renamed(name: str) -> str:
    for published, ours in VISION_NAMES:
        name = re.sub(published, ours, name)
    return name


def _fill(model: nn.Module, state_dict: Mapping[str, Tensor], checkpoint: str) -> None:
    missing, unknown = model.load_state_dict(state_dict, strict=False)
    if missing or unknown:
        raise RewardError(f"{checkpoint} differs from ImageReward.pt: without {missing[:5]}, with {unknown[:5]}")
