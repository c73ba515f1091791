"""An IP-Adapter for a tiny U-Net pipeline: features of an image enter the cross-attention next to the caption."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.embeddings import ImageProjection
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

SIDE, WIDTH, NUM_TOKENS = 16, 32, 4


def with_ip_adapter(pipeline: Any) -> Any:
    """The pipeline with a CLIP image encoder and an IP-Adapter in its published form, with random weights."""
    unet = pipeline.unet
    crossing = [name.removesuffix(".processor") for name in unet.attn_processors if name.endswith("attn2.processor")]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        projection = ImageProjection(WIDTH, unet.config.cross_attention_dim, NUM_TOKENS).state_dict()
        attended = {
            f"{2 * index + 1}.to_{part}_ip.weight": torch.randn_like(unet.get_submodule(name).to_k.weight) / 4
            for index, name in enumerate(crossing)  # counted among those of attention to oneself too
            for part in "kv"
        }
        encoder = CLIPVisionModelWithProjection(
            CLIPVisionConfig(
                hidden_size=WIDTH,
                intermediate_size=2 * WIDTH,
                projection_dim=WIDTH,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=SIDE,
                patch_size=SIDE // 2,
                initializer_range=0.3,
            )
        )
    processor = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    pipeline.register_modules(image_encoder=encoder.eval(), feature_extractor=processor)
    weights = {"image_proj": {key.replace("image_embeds", "proj"): value for key, value in projection.items()}}
    pipeline.load_ip_adapter({**weights, "ip_adapter": attended}, subfolder="", weight_name="")
    return pipeline
