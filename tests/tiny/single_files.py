"""A tiny Stable Diffusion pipeline as the one file in which the original code keeps such a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

Rules = Sequence[tuple[str, str]]

RESNET: Rules = (
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("time_emb_proj", "emb_layers.1"),
    ("conv_shortcut", "skip_connection"),
)
UNET: Rules = (
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("conv_in", "input_blocks.0.0"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
    ("mid_block.resnets.0", "middle_block.0"),
    ("mid_block.attentions.0", "middle_block.1"),
    ("mid_block.resnets.1", "middle_block.2"),
)
VAE: Rules = (
    ("mid_block.resnets.0", "mid.block_1"),
    ("mid_block.resnets.1", "mid.block_2"),
    ("mid_block.attentions.0", "mid.attn_1"),
    ("group_norm", "norm"),
    ("to_q", "q"),
    ("to_k", "k"),
    ("to_v", "v"),
    ("to_out.0", "proj_out"),
    ("conv_shortcut", "nin_shortcut"),
    ("conv_norm_out", "norm_out"),
)


def save(pipeline: Any, file: Path) -> None:
    """Writes U-Net, autoencoder and text encoder of Stable Diffusion 1 under the keys of its original code."""
    unet, vae, words = pipeline.unet, pipeline.vae, pipeline.text_encoder
    tensors: dict[str, Tensor] = {}
    for key, value in unet.state_dict().items():
        tensors[f"model.diffusion_model.{_unet_key(key, unet)}"] = value
    for key, value in vae.state_dict().items():
        tensors[f"first_stage_model.{_vae_key(key, len(vae.config.block_out_channels))}"] = value
    prefix = "" if next(iter(words.state_dict())).startswith("text_model.") else "text_model."
    for key, value in words.state_dict().items():
        tensors[f"cond_stage_model.transformer.{prefix}{key}"] = value
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, file)


def _unet_key(key: str, unet: Any) -> str:
    rules, layers = list(UNET), unet.config.layers_per_block
    for index, block in enumerate(unet.down_blocks):
        for layer in range(layers):
            at = f"input_blocks.{(layers + 1) * index + layer + 1}"
            rules += [(f"down_blocks.{index}.resnets.{layer}", f"{at}.0")]
            rules += [(f"down_blocks.{index}.attentions.{layer}", f"{at}.1")]
        rules += [(f"down_blocks.{index}.downsamplers.0.conv", f"input_blocks.{(layers + 1) * (index + 1)}.0.op")]
        assert len(block.resnets) == layers
    for index, block in enumerate(unet.up_blocks):
        has_attention = bool(getattr(block, "attentions", None))
        for layer in range(layers + 1):
            at = f"output_blocks.{(layers + 1) * index + layer}"
            rules += [(f"up_blocks.{index}.resnets.{layer}", f"{at}.0")]
            rules += [(f"up_blocks.{index}.attentions.{layer}", f"{at}.1")]
        last = f"output_blocks.{(layers + 1) * index + layers}.{1 + has_attention}.conv"
        rules += [(f"up_blocks.{index}.upsamplers.0.conv", last)]
    renamed = _renamed(key, rules)
    return _renamed(renamed, RESNET) if ".resnets." in key else renamed


def _vae_key(key: str, num_blocks: int) -> str:
    key = re.sub(r"down_blocks\.(\d+)\.resnets", r"down.\1.block", key)
    key = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", key)
    for index in range(num_blocks):
        key = key.replace(f"up_blocks.{index}.resnets", f"up.{num_blocks - 1 - index}.block")
        key = key.replace(f"up_blocks.{index}.upsamplers.0", f"up.{num_blocks - 1 - index}.upsample")
    return _renamed(key, VAE)


def _renamed(key: str, rules: Rules) -> str:
    """A key in which parts of the path are replaced."""
    for ours, theirs in rules:
        key = re.sub(rf"(^|\.){re.escape(ours)}(\.|$)", rf"\g<1>{theirs}\g<2>", key)
    return key
