"""Tiny autoencoders of the classes the pipelines ship with: 2 to 4 pixels of each side to a latent one."""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLCogVideoX,
    AutoencoderKLFlux2,
    AutoencoderKLLTXVideo,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
)

LATENT_CHANNELS = 4


def kl_autoencoder(*, scaling_factor: float, shift_factor: float | None = None) -> AutoencoderKL:
    """The image autoencoder of Stable Diffusion and FLUX; 2 pixels a latent."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=16,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
    )


def flux2_autoencoder() -> AutoencoderKLFlux2:
    """FLUX.2's, which normalizes patches of 2 x 2 latents; 2 pixels a latent."""
    return AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=16,
    )


def qwen_image_autoencoder() -> AutoencoderKLQwenImage:
    """Qwen-Image's causal video autoencoder, used on single frames; 4 pixels a latent."""
    return AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 0.8, 1.2, 0.9],
    )


def deep_compression_autoencoder() -> AutoencoderDC:
    """Sana's DC-AE; 4 pixels a latent."""
    blocks = ("ResBlock", "ResBlock", "EfficientViTBlock")
    multiscales = ((), (), (5,))
    return AutoencoderDC(
        latent_channels=LATENT_CHANNELS,
        attention_head_dim=4,
        encoder_block_types=blocks,
        decoder_block_types=blocks,
        encoder_block_out_channels=(8, 8, 16),
        decoder_block_out_channels=(8, 8, 16),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=multiscales,
        decoder_qkv_multiscales=multiscales,
        upsample_block_type="interpolate",
        downsample_block_type="conv",
        scaling_factor=0.41407,
    )


def wan_autoencoder() -> AutoencoderKLWan:
    """Wan's causal video autoencoder; 4 pixels and 2 frames a latent, the first frame alone."""
    return AutoencoderKLWan(
        base_dim=4,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 0.8, 1.2, 0.9],
        scale_factor_temporal=2,
        scale_factor_spatial=4,
    )


def cogvideox_autoencoder() -> AutoencoderKLCogVideoX:
    """CogVideoX's causal video autoencoder; 4 pixels and 2 frames a latent, the first frame alone."""
    return AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 3,
        up_block_types=("CogVideoXUpBlock3D",) * 3,
        block_out_channels=(8, 8, 8),
        latent_channels=LATENT_CHANNELS,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=2,
    )


def ltx_autoencoder() -> AutoencoderKLLTXVideo:
    """LTX-Video's; 4 pixels and 4 frames a latent, the first frame alone."""
    return AutoencoderKLLTXVideo(
        latent_channels=LATENT_CHANNELS,
        block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        down_block_types=("LTXVideoDownBlock3D",) * 2,
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, True),
        decoder_spatio_temporal_scaling=(True, True),
        decoder_inject_noise=(False, False, False),
        downsample_type=("conv", "conv"),
        upsample_residual=(False, False),
        upsample_factor=(1, 1),
        patch_size=1,
    )
