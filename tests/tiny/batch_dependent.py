"""Tiny pipelines whose rows depend on their batch, like those that they imitate: padding reaches the denoiser.

A single prompt is cut to its length; in a batch it is padded to a common length, and attention includes the padding.
"""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    Kandinsky3Pipeline,
    Kandinsky3UNet,
    LattePipeline,
    LatteTransformer3DModel,
    VQModel,
)

from tests.tiny.autoencoders import LATENT_CHANNELS, kl_autoencoder
from tests.tiny.text_encoders import WIDTH, t5_encoder
from tests.tiny.tokenizers import t5_tokenizer

LATTE_CALL = {"height": 16, "width": 16, "video_length": 2, "num_inference_steps": 4, "clean_caption": False}
KANDINSKY3_CALL = {"height": 64, "width": 64, "num_inference_steps": 4}


def latte() -> LattePipeline:
    """Latte with its T5 encoder; it masks the padding of several prompts, and cuts that of one off."""
    tokenizer = t5_tokenizer()
    transformer = LatteTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=LATENT_CHANNELS,
        out_channels=2 * LATENT_CHANNELS,
        num_layers=2,
        cross_attention_dim=32,
        attention_bias=True,
        sample_size=8,
        patch_size=2,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        caption_channels=WIDTH,
        video_length=2,
    )
    scheduler = DDIMScheduler(beta_schedule="linear", beta_start=1e-4, beta_end=0.02, clip_sample=False)
    return LattePipeline(
        tokenizer=tokenizer,
        text_encoder=t5_encoder(tokenizer),
        vae=kl_autoencoder(scaling_factor=0.18215),
        transformer=transformer,
        scheduler=scheduler,  # pyrefly: ignore[bad-argument-type]
    )


def kandinsky3() -> Kandinsky3Pipeline:
    """Kandinsky 3 with its T5 encoder and MoVQ; prompts are cut to the longest of a batch."""
    tokenizer = t5_tokenizer()
    unet = Kandinsky3UNet(
        in_channels=LATENT_CHANNELS,
        time_embedding_dim=16,
        groups=2,
        attention_head_dim=4,
        layers_per_block=3,
        block_out_channels=(8, 8, 8, 8),
        cross_attention_dim=8,
        encoder_hid_dim=WIDTH,
    )
    movq = VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 32),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        num_vq_embeddings=8,
        vq_embed_dim=LATENT_CHANNELS,
        norm_type="spatial",
    )
    return Kandinsky3Pipeline(
        tokenizer=tokenizer,
        text_encoder=t5_encoder(tokenizer),
        unet=unet,
        scheduler=DDPMScheduler(beta_start=0.00085, beta_end=0.02, clip_sample=False),
        movq=movq,
    )
