"""Tiny U-Net pipelines: Stable Diffusion 1.5 under several schedulers, its inpainting, and SDXL."""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    SchedulerMixin,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from tests.tiny.autoencoders import LATENT_CHANNELS, kl_autoencoder
from tests.tiny.text_encoders import WIDTH, clip_encoder, clip_projected_encoder
from tests.tiny.tokenizers import clip_tokenizer

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def sd15() -> StableDiffusionPipeline:
    """Stable Diffusion 1.5 with DDIM; the denoiser predicts the noise."""
    return StableDiffusionPipeline(**_sd15_parts(DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False)))


def sd15_v() -> StableDiffusionPipeline:
    """Stable Diffusion with DDIM; the denoiser predicts the velocity, as 2.1 does."""
    scheduler = DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False, prediction_type="v_prediction")
    return StableDiffusionPipeline(**_sd15_parts(scheduler))


def sd15_dpm() -> StableDiffusionPipeline:
    """Stable Diffusion 1.5 with DPM-Solver++ of second order."""
    return StableDiffusionPipeline(**_sd15_parts(DPMSolverMultistepScheduler(**BETAS)))


def sd15_euler_ancestral() -> StableDiffusionPipeline:
    """Stable Diffusion 1.5 with ancestral Euler, whose steps draw noise by themselves."""
    return StableDiffusionPipeline(**_sd15_parts(EulerAncestralDiscreteScheduler(**BETAS)))


def sd15_lcm() -> StableDiffusionPipeline:
    """Stable Diffusion 1.5 with the latent consistency sampler, as with an LCM adapter; its steps draw noise."""
    return StableDiffusionPipeline(**_sd15_parts(LCMScheduler(**BETAS)))


def sd15_inpaint() -> StableDiffusionInpaintPipeline:
    """Inpainting with the plain four-channel denoiser: the known part of the latent is overwritten at each step."""
    scheduler = DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False)
    return StableDiffusionInpaintPipeline(**_sd15_parts(scheduler))


def sdxl() -> StableDiffusionXLPipeline:
    """SDXL with its two CLIP encoders, size conditioning and Euler scheduler."""
    tokenizers = clip_tokenizer(), clip_tokenizer()
    unet = _unet(
        cross_attention_dim=2 * WIDTH,
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
    )
    return StableDiffusionXLPipeline(
        vae=kl_autoencoder(scaling_factor=0.13025),
        text_encoder=clip_encoder(tokenizers[0]),
        text_encoder_2=clip_projected_encoder(tokenizers[1]),
        tokenizer=tokenizers[0],
        tokenizer_2=tokenizers[1],
        unet=unet,
        scheduler=EulerDiscreteScheduler(**BETAS, timestep_spacing="leading"),  # pyrefly: ignore[bad-argument-type]
        add_watermarker=False,
    )


def _sd15_parts(scheduler: SchedulerMixin) -> Mapping[str, Any]:
    tokenizer = clip_tokenizer()
    return {
        "vae": kl_autoencoder(scaling_factor=0.18215),
        "text_encoder": clip_encoder(tokenizer),
        "tokenizer": tokenizer,
        "unet": _unet(cross_attention_dim=WIDTH),
        "scheduler": scheduler,
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }


def _unet(**config: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=2,
        **config,
    )
