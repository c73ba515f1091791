"""Tiny pipelines of the FLUX family."""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler as FlowMatchEuler
from diffusers import (
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    SchedulerMixin,
)
from transformers import PixtralImageProcessor, PixtralProcessor

from tests.tiny.autoencoders import LATENT_CHANNELS, flux2_autoencoder, kl_autoencoder
from tests.tiny.text_encoders import WIDTH, clip_encoder, mistral3_encoder, qwen3_encoder, t5_encoder
from tests.tiny.tokenizers import clip_tokenizer, mistral_tokenizer, qwen_tokenizer, t5_tokenizer

PACKED_CHANNELS = 4 * LATENT_CHANNELS  # patches of 2 x 2 latents


def flux() -> FluxPipeline:
    """FLUX.1-dev, which takes the guidance scale as an input."""
    return FluxPipeline(**_flux_parts())


def flux_kontext() -> FluxKontextPipeline:
    """FLUX.1-Kontext, which reads a condition image next to the noise."""
    return FluxKontextPipeline(**_flux_parts())


def flux2() -> Flux2Pipeline:
    """FLUX.2-dev with its Mistral 3 encoder after a Pixtral processor."""
    tokenizer = mistral_tokenizer()
    processor = PixtralProcessor(
        image_processor=PixtralImageProcessor(), tokenizer=tokenizer, chat_template=tokenizer.chat_template
    )
    return Flux2Pipeline(
        scheduler=_scheduler(),  # pyrefly: ignore[bad-argument-type]
        vae=flux2_autoencoder(),
        text_encoder=mistral3_encoder(tokenizer),
        tokenizer=processor,  # pyrefly: ignore[bad-argument-type]
        transformer=_flux2_transformer(guidance_embeds=True),
    )


def flux2_klein() -> Flux2KleinPipeline:
    """FLUX.2-klein (base) with its Qwen3 encoder and true classifier-free guidance."""
    tokenizer = qwen_tokenizer()
    return Flux2KleinPipeline(
        scheduler=_scheduler(),  # pyrefly: ignore[bad-argument-type]
        vae=flux2_autoencoder(),
        text_encoder=qwen3_encoder(tokenizer),
        tokenizer=tokenizer,
        transformer=_flux2_transformer(guidance_embeds=False),
        is_distilled=False,
    )


def _flux_parts() -> Mapping[str, Any]:
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    transformer = FluxTransformer2DModel(
        in_channels=PACKED_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    return {
        "scheduler": _scheduler(),
        "vae": kl_autoencoder(scaling_factor=0.3611, shift_factor=0.1159),
        "text_encoder": clip_encoder(clip),
        "tokenizer": clip,
        "text_encoder_2": t5_encoder(t5),
        "tokenizer_2": t5,
        "transformer": transformer,
    }


def _flux2_transformer(*, guidance_embeds: bool) -> Flux2Transformer2DModel:
    return Flux2Transformer2DModel(
        in_channels=PACKED_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * WIDTH,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance_embeds,
    )


def _scheduler() -> SchedulerMixin:
    return FlowMatchEuler(shift=3.0, use_dynamic_shifting=True)
