"""Floating-point operations of a forward, by formula, and the utilization of the GPU's peak from a time.

A multiplication with its addition counts two. Per token a linear layer costs twice its weights, and attention of N
queries over M keys of width d in all heads 4 N M d. Norms, modulations of a sample and activations do not count.

Of a denoiser with d channels, N image tokens and M text tokens:
    SD3: per block 24 d^2 (N + M) + 4 (N + M)^2 d, a second attention over the image 8 d^2 N + 4 N^2 d where there is
    one; the last block's text stream has queries, keys and values alone: 6 d^2 M.
    FLUX: per block of either kind 24 d^2 (N + M) + 4 (N + M)^2 d.
    Wan: per block 12 d^2 N + 4 d^2 M + 4 d f N + 4 N^2 d + 4 N M d, where f is the width of the feed-forward layer.
    and each its patches and text embeddings once: 2 N c d + 2 M t d + 2 N c d, of c channels a patch and t of the text.
Of a decoder: per token and layer 2 (2 d^2 + 2 d k + 3 d f), where k is the width of keys, and 2 d over the keys before
it, twice; per scored token 2 d V.

An update is three forwards, two where adapters alone are trained: their own products are a few per cent. What
checkpointing repeats does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

DATASHEET = {"H100": 989.4e12, "H200": 989.4e12, "A100": 312e12}
"""Dense bfloat16 operations per second by the vendor's datasheet, of the part with NVLink."""


def sd3_forward(config: Any, rows: int, image: int, text: int) -> float:
    """Operations of a forward of rows with so many image and text tokens."""
    d = config.num_attention_heads * config.attention_head_dim
    both, dual = image + text, len(config.dual_attention_layers)
    blocks = config.num_layers * (24 * d * d * both + 4 * both * both * d) - 18 * d * d * text
    second = dual * (8 * d * d * image + 4 * image * image * d)
    patch = config.in_channels * config.patch_size**2
    ends = 2 * image * patch * d + 2 * text * config.joint_attention_dim * d + 2 * image * patch * d
    return float(rows * (blocks + second + ends))


def flux_forward(config: Any, rows: int, image: int, text: int) -> float:
    """Operations of a forward of rows with so many image and text tokens."""
    d = config.num_attention_heads * config.attention_head_dim
    both, blocks = image + text, config.num_layers + config.num_single_layers
    ends = 4 * image * config.in_channels * d + 2 * text * config.joint_attention_dim * d
    return float(rows * (blocks * (24 * d * d * both + 4 * both * both * d) + ends))


def wan_forward(config: Any, rows: int, image: int, text: int) -> float:
    """Operations of a forward of rows with so many video and text tokens."""
    d, f = config.num_attention_heads * config.attention_head_dim, config.ffn_dim
    block = 12 * d * d * image + 4 * d * d * text + 4 * d * f * image + 4 * image * (image + text) * d
    patch = config.in_channels * config.patch_size[0] * config.patch_size[1] * config.patch_size[2]
    ends = 4 * image * patch * d + 2 * text * (config.text_dim + d) * d
    return float(rows * (config.num_layers * block + ends))


def denoiser_forward(denoiser: nn.Module, call: Mapping[str, Any]) -> float:
    """Operations of a forward with these arguments."""
    config: Any = denoiser.config
    hidden, text = call["hidden_states"], call["encoder_hidden_states"].shape[1]
    kind = type(denoiser).__name__
    if kind == "SD3Transformer2DModel":
        image = hidden.shape[-1] * hidden.shape[-2] // config.patch_size**2
        return sd3_forward(config, len(hidden), image, text)
    if kind == "FluxTransformer2DModel":
        return flux_forward(config, len(hidden), hidden.shape[1], text)
    if kind != "WanTransformer3DModel":
        raise ValueError(f"no formula for {kind}; add one")
    t, h, w = config.patch_size
    image = (hidden.shape[2] // t) * (hidden.shape[3] // h) * (hidden.shape[4] // w)
    return wan_forward(config, len(hidden), image, text)


def decoder_forward(config: Any, segments: Sequence[tuple[int, int]], scored: int) -> float:
    """Operations of a decoder and its head.

    Args:
        config: of the text model.
        segments: the number of tokens of each sequence with the number of tokens before it, which it attends to.
        scored: tokens whose logits are computed.

    Returns:
        Operations of a forward.
    """
    d, f, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    k = d * config.num_key_value_heads // config.num_attention_heads
    tokens = sum(new for new, _ in segments)
    keys = sum(new * before + new * (new + 1) / 2 for new, before in segments)
    return float(layers * (2 * tokens * (2 * d * d + 2 * d * k + 3 * d * f) + 4 * keys * d)) + 2.0 * scored * d * (
        config.vocab_size
    )


def counted(work: Callable[[], Any]) -> float:
    """Operations that torch counts in ``work``; it knows products, convolutions and attention."""
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def peak_rate(device: str, measured: float) -> float:
    """Operations per second that a share is of: the datasheet's, else the measured rate of a product."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    return next((rate for part, rate in DATASHEET.items() if part in name), measured)
