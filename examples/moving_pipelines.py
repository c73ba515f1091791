"""The model of ``quickstart/moving-digit-video``: stock classes, small enough to train on two CPU cores.

A ``HunyuanVideoPipeline`` whose transformer has 0.5 M weights and works on the pixels of three frames of 16 x 16. Its
image tokens attend jointly to the caption tokens, which have no rotary positions, and so learn their positions; with
separate cross-attention, as in Wan, a small model from scratch learns neither position nor direction within minutes.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)
from mmgrpo.examples.digits import DIGIT_NAMES
from mmgrpo.examples.moving_digits import DIRECTIONS
from mmgrpo.examples.pipelines import END, START, word_tokenizer, zero_modulation
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

WORDS = ["moving", *DIGIT_NAMES, *DIRECTIONS]
TEXT_WIDTH = 32
CAPTION_TOKENS = 5
CLIP_TOKENS = 77  # required by the pipeline
CONTRAST = 4.0  # of captions, in which all but two words are equal
PLATEAU = 64.0  # large relative to pixels, so that the group norm is linear in them


def moving_digits_pipeline(seed: int = 0) -> HunyuanVideoPipeline:
    """An untrained text-to-video pipeline for gray clips of 16 x 16; the seed fixes its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer(WORDS, max_length=CAPTION_TOKENS)
        transformer = HunyuanVideoTransformer3DModel(
            in_channels=1,
            out_channels=1,
            num_attention_heads=2,
            attention_head_dim=32,
            num_layers=2,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=4,
            patch_size_t=1,
            guidance_embeds=False,
            text_embed_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
            rope_axes_dim=(8, 12, 12),
        )
        zero_modulation(transformer)
        components: dict[str, Any] = {  # the pipeline takes more than its annotations say
            "text_encoder": _language_model(tokenizer),
            "tokenizer": tokenizer,
            "transformer": transformer,
            "vae": video_autoencoder(),
            "scheduler": FlowMatchEulerDiscreteScheduler(shift=1.0),
            "text_encoder_2": _caption_encoder(tokenizer),
            "tokenizer_2": word_tokenizer(WORDS, max_length=CLIP_TOKENS),
        }
    return HunyuanVideoPipeline(**components)


def video_autoencoder() -> AutoencoderKLHunyuanVideo:
    """A stock video autoencoder whose latents are (almost) the pixels in [-1, 1].

    It has no downsampling, and only its first and last layers have an effect: a pixel x becomes (K + x, K - x, -K - x,
    x - K), which a group norm divides by about K, and is recovered from the first two.
    """
    vae = AutoencoderKLHunyuanVideo(
        in_channels=1,
        out_channels=1,
        latent_channels=1,
        down_block_types=("HunyuanVideoDownBlock3D",),
        up_block_types=("HunyuanVideoUpBlock3D",),
        block_out_channels=(4,),
        layers_per_block=0,
        norm_num_groups=1,
        scaling_factor=1.0,
        spatial_compression_ratio=1,
        mid_block_add_attention=False,
    )
    vae.temporal_compression_ratio = 1  # a single block does not downsample, whatever the configuration says
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
        for module in vae.modules():
            if isinstance(module, nn.GroupNorm):
                module.weight.fill_(1.0)
        ends: list[Any] = [vae.encoder, vae.decoder]
        for part in ends:
            _read_and_write(part.conv_in.conv, part.conv_out.conv)
        for convolution in (vae.quant_conv, vae.post_quant_conv):
            convolution.weight[0, 0] = 1.0
        assert vae.quant_conv.bias is not None
        vae.quant_conv.bias[1] = -30.0  # the log-variance of the latents
    return vae


def _read_and_write(first: nn.Conv3d, last: nn.Conv3d) -> None:
    """Set the first and the last layer: silu(a + b) - silu(a - b) = 2 b silu'(a) + O(b^3), here of a = 1 and b = x /
    K.
    """
    slope = torch.sigmoid(torch.ones(())) * (1 + torch.sigmoid(-torch.ones(())))
    center = (..., -1, 1, 1)  # the convolutions are causal in time and centered in space
    assert first.bias is not None
    for channel, (sign_x, sign) in enumerate([(1, 1), (-1, 1), (-1, -1), (1, -1)]):
        first.weight[channel, 0][center] = float(sign_x)
        first.bias[channel] = sign * PLATEAU
    for channel, sign in ((0, 1), (1, -1)):
        last.weight[0, channel][center] = sign * PLATEAU / (2 * slope)


def _language_model(tokenizer: PreTrainedTokenizerFast) -> LlamaModel:
    """The pipeline reads its third last hidden states: with two layers, the word embeddings."""
    vocabulary = tokenizer.get_vocab()
    model = LlamaModel(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            bos_token_id=vocabulary[START],
            eos_token_id=vocabulary[END],
            pad_token_id=vocabulary[END],
        )
    )
    _tell_words_apart(model)
    return model


def _caption_encoder(tokenizer: PreTrainedTokenizerFast) -> CLIPTextModel:
    vocabulary = tokenizer.get_vocab()
    model = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=CLIP_TOKENS,
            bos_token_id=vocabulary[START],
            eos_token_id=vocabulary[END],
            pad_token_id=vocabulary[END],
        )
    )
    _tell_words_apart(model)
    nn.init.constant_(model.final_layer_norm.weight, CONTRAST)
    return model


def _tell_words_apart(model: nn.Module) -> None:
    """Give frozen encoders weights of normal scale, because with small weights two captions have almost equal
    embeddings.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings < CLIP_TOKENS:
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
