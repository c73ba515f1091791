"""Tiny image pipelines around a diffusion transformer."""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from diffusers import (
    DPMSolverMultistepScheduler,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers import FlowMatchEulerDiscreteScheduler as FlowMatchEuler

from tests.tiny.autoencoders import (
    LATENT_CHANNELS,
    deep_compression_autoencoder,
    kl_autoencoder,
    qwen_image_autoencoder,
)
from tests.tiny.text_encoders import (
    WIDTH,
    clip_projected_encoder,
    gemma2_encoder,
    qwen2_5_vl_encoder,
    qwen3_encoder,
    t5_encoder,
)
from tests.tiny.tokenizers import clip_tokenizer, gemma_tokenizer, qwen_tokenizer, t5_tokenizer


def sd3() -> StableDiffusion3Pipeline:
    """Stable Diffusion 3 with its two CLIP encoders and T5, as wide as both together."""
    tokenizers = clip_tokenizer(), clip_tokenizer(), t5_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=8,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=WIDTH,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=8,
        qk_norm="rms_norm",
    )
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEuler(shift=3.0),
        vae=kl_autoencoder(scaling_factor=1.5305, shift_factor=0.0609),
        text_encoder=clip_projected_encoder(tokenizers[0]),
        tokenizer=tokenizers[0],
        text_encoder_2=clip_projected_encoder(tokenizers[1]),
        tokenizer_2=tokenizers[1],
        text_encoder_3=t5_encoder(tokenizers[2], width=2 * WIDTH),
        tokenizer_3=tokenizers[2],
    )


def qwen_image() -> QwenImagePipeline:
    """Qwen-Image with its Qwen2.5-VL encoder and exponential, terminal-stretched shift."""
    tokenizer = qwen_tokenizer()
    transformer = QwenImageTransformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 6, 6),
    )
    scheduler = FlowMatchEuler(
        use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02, shift=1.0
    )
    return QwenImagePipeline(
        scheduler=scheduler,
        vae=qwen_image_autoencoder(),
        text_encoder=qwen2_5_vl_encoder(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def sana() -> SanaPipeline:
    """Sana with its Gemma 2 encoder, deep-compression autoencoder and multistep flow solver."""
    tokenizer = gemma_tokenizer()
    transformer = SanaTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=WIDTH,
        sample_size=8,
    )
    return SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=gemma2_encoder(tokenizer),
        vae=deep_compression_autoencoder(),
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    )


def z_image() -> ZImagePipeline:
    """Z-Image with its Qwen3 encoder and single-stream transformer."""
    tokenizer = qwen_tokenizer()
    transformer = ZImageTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[4, 6, 6],
        axes_lens=[256, 32, 32],
    )
    return ZImagePipeline(
        scheduler=FlowMatchEuler(shift=3.0),
        vae=kl_autoencoder(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=qwen3_encoder(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def lumina2() -> Lumina2Pipeline:
    """Lumina-Image 2.0 with its Gemma 2 encoder; time runs from noise at 0 to data at 1 inside its denoiser."""
    tokenizer = gemma_tokenizer()
    transformer = Lumina2Transformer2DModel(
        sample_size=8,
        in_channels=LATENT_CHANNELS,
        hidden_size=32,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 6, 6),
        axes_lens=(256, 32, 32),
        cap_feat_dim=WIDTH,
    )
    return Lumina2Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEuler(shift=6.0),
        vae=kl_autoencoder(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=gemma2_encoder(tokenizer),
        tokenizer=tokenizer,
    )


def pixart_sigma() -> PixArtSigmaPipeline:
    """PixArt-Sigma with its T5 encoder; the denoiser predicts noise and a variance that the pipeline drops."""
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=LATENT_CHANNELS,
        out_channels=2 * LATENT_CHANNELS,
        num_layers=2,
        cross_attention_dim=32,
        caption_channels=WIDTH,
        sample_size=8,
        use_additional_conditions=False,
    )
    return PixArtSigmaPipeline(
        tokenizer=tokenizer,
        text_encoder=t5_encoder(tokenizer),
        vae=kl_autoencoder(scaling_factor=0.13025),
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(),  # pyrefly: ignore[bad-argument-type]
    )
