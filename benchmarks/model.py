"""The model that overhead is measured on: a stock Stable Diffusion 3 pipeline of a size between toy and real."""

# diffusers exports lazily and annotates its components more narrowly than it takes them.

from __future__ import annotations

from typing import Any, final

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from torch import Tensor, nn

from tests.tiny.autoencoders import LATENT_CHANNELS, kl_autoencoder
from tests.tiny.text_encoders import WIDTH, clip_projected_encoder, t5_encoder
from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer

LATENT_SIZE = 32
PIXELS = 2 * LATENT_SIZE  # the autoencoder halves each side
IMAGE_TOKENS = (LATENT_SIZE // 2) ** 2
T5_TOKENS = 51
TEXT_TOKENS = 77 + T5_TOKENS


@final
class HollowTransformer(SD3Transformer2DModel):
    """A denoiser that costs nothing: the time of a training step with it is overhead by definition."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor]:
        """The input times one trainable number."""
        return (hidden_states * self.proj_out.bias[0],)


def mid_size_pipeline(*, hollow: bool = False) -> StableDiffusion3Pipeline:
    """An SD3 pipeline whose transformer has 14 M random weights and sees 256 image and 128 text tokens.

    Args:
        hollow: with a transformer of the same interface whose forward does no work.

    Returns:
        The pipeline, in float32 on the CPU.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tokenizers = clip_tokenizer(), clip_tokenizer(), t5_tokenizer()
        pipeline = StableDiffusion3Pipeline(
            transformer=_transformer(hollow),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=kl_autoencoder(scaling_factor=1.5305, shift_factor=0.0609),
            text_encoder=clip_projected_encoder(tokenizers[0]),
            tokenizer=tokenizers[0],
            text_encoder_2=clip_projected_encoder(tokenizers[1]),
            tokenizer_2=tokenizers[1],
            text_encoder_3=t5_encoder(tokenizers[2], width=2 * WIDTH),
            tokenizer_3=tokenizers[2],
        )
    return pipeline


def _transformer(hollow: bool) -> SD3Transformer2DModel:
    kind = HollowTransformer if hollow else SD3Transformer2DModel
    transformer = kind(
        sample_size=LATENT_SIZE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=6,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=256,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=LATENT_SIZE // 2,
        qk_norm="rms_norm",
    )
    if hollow:
        nn.init.ones_(transformer.proj_out.bias)
    return transformer
