"""The model of ``quickstart/digits-masked``: an AmusedPipeline of stock classes, for two CPU cores.

Its codes are the gray levels of the pixels: the stock ``VQModel`` is initialized to the identity.
"""

# Layers of a module that was made here are not annotated as what they are.

from __future__ import annotations

from typing import Any

import torch
from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel
from mmgrpo.examples.pipelines import TEXT_WIDTH, text_encoder, word_tokenizer

LEVELS = 9
SIDE = 8
MICRO = 4  # width of each of the five micro-conditions
LOUD = 100.0  # large, so that the pixel's contribution to the variance is negligible
OFFSET = 16.0  # keeps SiLU in its linear range


def digits_amused(seed: int = 0) -> AmusedPipeline:
    """An untrained masked text-to-image pipeline for 8 x 8 gray digits; the seed fixes its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer()
        transformer = UVit2DModel(
            hidden_size=96,
            cond_embed_dim=TEXT_WIDTH,
            micro_cond_encode_dim=MICRO,
            micro_cond_embed_dim=5 * MICRO,
            encoder_hidden_size=TEXT_WIDTH,
            vocab_size=LEVELS + 1,
            codebook_size=LEVELS,
            in_channels=32,
            block_out_channels=64,
            num_res_blocks=1,
            downsample=True,
            upsample=True,
            block_num_heads=2,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=192,
            sample_size=SIDE,
        )
        parts: dict[str, Any] = {
            "vqvae": level_codes(),
            "tokenizer": tokenizer,
            "text_encoder": text_encoder(tokenizer),
            "transformer": transformer,
            "scheduler": AmusedScheduler(mask_token_id=LEVELS),
        }
    return AmusedPipeline(**parts)


def level_codes() -> Any:
    """A stock VQModel whose codes are ``LEVELS`` gray levels, black to white, one per pixel.

    Its norms would remove the mean and contrast of an image. So each pixel x is paired with -x, for a mean of 0, and
    with two large constants, which dominate the variance; offsets keep the activations linear.
    """
    model: Any = VQModel(
        in_channels=1,
        out_channels=1,
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
        block_out_channels=(4,),
        layers_per_block=0,
        latent_channels=1,
        num_vq_embeddings=LEVELS,
        norm_num_groups=1,
        mid_block_add_attention=False,
        lookup_from_codebook=True,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for half in (model.encoder, model.decoder):
            half.conv_in.weight[:2, 0, 1, 1] = torch.tensor([1.0, -1.0])
            half.conv_in.bias[2:] = torch.tensor([LOUD, -LOUD])
            half.conv_norm_out.weight.fill_(LOUD / 2**0.5)
            half.conv_norm_out.bias.fill_(OFFSET)
            half.conv_out.weight[0, 0, 1, 1] = 1.0
            half.conv_out.bias.fill_(-OFFSET)
        model.quant_conv.weight.fill_(1.0)
        model.post_quant_conv.weight.fill_(1.0)
        model.quantize.embedding.weight.copy_(torch.linspace(0, 1, LEVELS)[:, None])
    return model
