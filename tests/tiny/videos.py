"""Tiny text-to-video pipelines."""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from diffusers import (
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from diffusers import FlowMatchEulerDiscreteScheduler as FlowMatchEuler

from tests.tiny.autoencoders import LATENT_CHANNELS, cogvideox_autoencoder, ltx_autoencoder, wan_autoencoder
from tests.tiny.text_encoders import WIDTH, t5_encoder, umt5_encoder
from tests.tiny.tokenizers import t5_tokenizer

COGVIDEOX_TEXT_LENGTH = 64  # its position table is made for one length of text


def wan() -> WanPipeline:
    """Wan 2.1 text-to-video with its UMT5 encoder and UniPC flow solver."""
    tokenizer = t5_tokenizer()
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=48,
        num_layers=2,
    )
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    return WanPipeline(
        tokenizer=tokenizer,
        text_encoder=umt5_encoder(tokenizer),
        vae=wan_autoencoder(),
        scheduler=scheduler,  # pyrefly: ignore[bad-argument-type]
        transformer=transformer,
    )


def cogvideox() -> CogVideoXPipeline:
    """CogVideoX-2b with its T5 encoder; the denoiser predicts the velocity on a zero-terminal-SNR schedule."""
    tokenizer = t5_tokenizer()
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        time_embed_dim=16,
        text_embed_dim=WIDTH,
        num_layers=2,
        sample_width=4,
        sample_height=4,
        sample_frames=5,
        temporal_compression_ratio=2,
        max_text_seq_length=COGVIDEOX_TEXT_LENGTH,
    )
    scheduler = CogVideoXDDIMScheduler(
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        clip_sample=False,
        rescale_betas_zero_snr=True,
        snr_shift_scale=3.0,
        timestep_spacing="trailing",
    )
    return CogVideoXPipeline(
        tokenizer=tokenizer,
        text_encoder=t5_encoder(tokenizer),
        vae=cogvideox_autoencoder(),
        transformer=transformer,
        scheduler=scheduler,
    )


def ltx() -> LTXPipeline:
    """LTX-Video with its T5 encoder and dynamic, terminal-stretched shift."""
    tokenizer = t5_tokenizer()
    transformer = LTXVideoTransformer3DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        num_layers=2,
        caption_channels=WIDTH,
    )
    scheduler = FlowMatchEuler(
        use_dynamic_shifting=True, base_shift=0.95, max_shift=2.05, base_image_seq_len=1024, shift_terminal=0.1
    )
    return LTXPipeline(
        scheduler=scheduler,
        vae=ltx_autoencoder(),
        text_encoder=t5_encoder(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
    )
