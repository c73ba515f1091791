"""The models of ``quickstart/digits-image``, ``digits-edit`` and of ``shapes``: stock classes, for two CPU cores.

Two ``StableDiffusion3Pipeline`` and a ``FluxKontextPipeline``, which is conditioned on a source image. Their
transformers work on the pixels themselves: the autoencoder is a stock ``AutoencoderTiny`` without layers, set so that
it changes (almost) nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from diffusers import (
    AutoencoderTiny,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from mmgrpo.errors import PolicyError

WORDS = ["a", "handwritten", "digit", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SHAPE_WORDS = ["a", "two", "three", "red", "green", "blue", "above", "left", "of"]
SHAPE_WORDS += ["circle", "circles", "square", "squares", "triangle", "triangles"]
EDIT_WORDS = ["mirror", "invert", "move", "make", "the", "digit", "left", "bold"]
START, END, UNKNOWN = "<|startoftext|>", "<|endoftext|>", "<|unknown|>"
TEXT_WIDTH = 32
OFFSET = 4.0  # keeps AutoencoderTiny's ReLU in its linear range


def digits_pipeline(seed: int = 0, *, num_layers: int = 3) -> StableDiffusion3Pipeline:
    """An untrained text-to-image pipeline for 8 x 8 gray digits; the seed fixes its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer()
        transformer = _sd3_transformer(side=8, patch_size=2, channels=1, num_heads=2, num_layers=num_layers)
        return _sd3_pipeline(transformer, tokenizer, pixel_autoencoder(), shift=1.0)


def shapes_pipeline(seed: int = 0, *, num_layers: int = 3) -> StableDiffusion3Pipeline:
    """An untrained text-to-image pipeline for 36 x 36 color scenes of ``shapes``; the seed fixes its weights.

    A quarter of an object is a patch. Large uniform objects are recognizable in strong noise, so most steps are there:
    the shift is 8.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer(SHAPE_WORDS, max_length=10)
        transformer = _sd3_transformer(side=36, patch_size=6, channels=3, num_heads=4, num_layers=num_layers)
        pass_patches_through(transformer)
        return _sd3_pipeline(transformer, tokenizer, pixel_autoencoder(3, latent_channels=3), shift=8.0)


def _sd3_transformer(
    *, side: int, patch_size: int, channels: int, num_heads: int, num_layers: int
) -> SD3Transformer2DModel:
    transformer = SD3Transformer2DModel(
        sample_size=side,
        patch_size=patch_size,
        in_channels=channels,
        out_channels=channels,
        num_layers=num_layers,
        attention_head_dim=32,
        num_attention_heads=num_heads,
        joint_attention_dim=2 * TEXT_WIDTH,
        caption_projection_dim=32 * num_heads,
        pooled_projection_dim=2 * TEXT_WIDTH,
        pos_embed_max_size=side // patch_size,
        qk_norm="rms_norm",
    )
    zero_modulation(transformer)
    return transformer


def _sd3_pipeline(
    transformer: SD3Transformer2DModel, tokenizer: PreTrainedTokenizerFast, vae: AutoencoderTiny, *, shift: float
) -> StableDiffusion3Pipeline:
    components: dict[str, Any] = {  # the pipeline takes more than its annotations say
        "transformer": transformer,
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=shift),
        "vae": vae,
        "text_encoder": text_encoder(tokenizer),
        "tokenizer": tokenizer,
        "text_encoder_2": text_encoder(tokenizer),
        "tokenizer_2": tokenizer,
        "text_encoder_3": None,
        "tokenizer_3": None,
    }
    return StableDiffusion3Pipeline(**components)


def digits_edit_pipeline(seed: int = 0) -> FluxKontextPipeline:
    """An untrained pipeline that edits 8 x 8 gray digits by instruction; the seed fixes its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer(EDIT_WORDS)
        transformer = FluxTransformer2DModel(
            in_channels=4,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=32,
            num_attention_heads=2,
            joint_attention_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
            axes_dims_rope=(8, 12, 12),
        )
        zero_modulation(transformer)
        components: dict[str, Any] = {
            "transformer": transformer,
            "scheduler": FlowMatchEulerDiscreteScheduler(shift=1.0),
            "vae": pixel_autoencoder(3),
            "text_encoder": CLIPTextModel(_clip_config(tokenizer)),
            "tokenizer": tokenizer,
            "text_encoder_2": _t5_encoder(tokenizer),
            "tokenizer_2": tokenizer,
        }
    return FluxKontextPipeline(**components)


def word_tokenizer(words: Sequence[str] = WORDS, *, max_length: int = 6) -> PreTrainedTokenizerFast:
    """A word-level tokenizer, by default of the words of the captions, with at most ``max_length`` tokens per text."""
    vocabulary = {word: index for index, word in enumerate([START, END, UNKNOWN, *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, vocabulary[START]), (END, vocabulary[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        model_max_length=max_length,
    )


def zero_modulation(transformer: nn.Module) -> None:
    """Zeroes the adaptive norms' and the output's linear layers, as diffusion transformers are initialized.

    Source: DiT, arXiv:2212.09748, sec. 3.2 (adaLN-Zero); diffusers leaves it to the training script.
    """
    for name, module in transformer.named_modules():
        if isinstance(module, nn.Linear) and (
            ".norm1" in name or name.endswith(".norm.linear") or "norm_out" in name or name == "proj_out"
        ):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


def pass_patches_through(transformer: SD3Transformer2DModel, scale: float = 0.4) -> None:
    """Initializes the embedding of patches with orthonormal rows times ``scale``, and the output with its transpose.

    The untrained model then predicts its noisy input, up to a factor and an offset of each position, which is nearly
    right in strong noise; with random layers it first learns to copy noise. A small ``scale`` keeps the position
    embedding large in comparison.

    Raises: PolicyError if a patch has more values than the model is wide.
    """
    projection = transformer.pos_embed.proj
    width, channels, side, _ = projection.weight.shape
    num_values = channels * side**2
    if num_values > width:
        raise PolicyError(f"patches of {num_values} values do not pass through a width of {width}; use smaller patches")
    basis = torch.linalg.qr(torch.randn(width, num_values))[0]
    with torch.no_grad():
        projection.weight.copy_(scale * basis.view_as(projection.weight))
        projection.bias = nn.Parameter(torch.zeros(width))
        pixels_first = basis.view_as(projection.weight).permute(2, 3, 1, 0)  # the order of the output
        transformer.proj_out.weight.copy_(math.sqrt(num_values / width) * pixels_first.reshape(num_values, width))


def pixel_autoencoder(channels: int = 1, *, latent_channels: int = 1) -> AutoencoderTiny:
    """A stock autoencoder whose latents are the pixels in [-1, 1]: delta kernels, and offsets that cancel.

    With one latent channel it is the mean of the image's channels, and all decoded channels are equal: gray images are
    preserved. With as many as the image has, each is preserved. The decoder applies 3 tanh(x / 3); the encoder
    compensates at 1, so black and white are preserved.
    """
    vae = AutoencoderTiny(
        in_channels=channels,
        out_channels=channels,
        encoder_block_out_channels=(latent_channels,),
        decoder_block_out_channels=(latent_channels,),
        num_encoder_blocks=(0,),
        num_decoder_blocks=(0,),
        latent_channels=latent_channels,
        scaling_factor=1.0,
    )
    stretch = 1.0 / (3.0 * torch.tanh(torch.tensor(1.0 / 3.0)).item())
    # the encoder sees (x + 1) / 2, the decoder's result becomes 2 y - 1
    first, second = [m for m in vae.encoder.modules() if isinstance(m, nn.Conv2d)]
    _set_pointwise(first, 2.0, -1.0)
    _set_pointwise(second, 1.0, 0.0)
    first, second = [m for m in vae.decoder.modules() if isinstance(m, nn.Conv2d)]
    _set_pointwise(first, stretch, OFFSET)
    _set_pointwise(second, 0.5, (1.0 - OFFSET) / 2.0)
    return vae


def _set_pointwise(convolution: nn.Conv2d, scale: float, offset: float) -> None:
    outputs, inputs = convolution.out_channels, convolution.in_channels
    mixing = torch.eye(outputs) if outputs == inputs else torch.full((outputs, inputs), 1.0 / inputs)
    with torch.no_grad():
        convolution.weight.zero_()
        convolution.weight[:, :, 1, 1] = scale * mixing
        if convolution.bias is not None:
            convolution.bias.fill_(offset)


def text_encoder(tokenizer: PreTrainedTokenizerFast) -> CLIPTextModelWithProjection:
    """An untrained encoder that distinguishes the words."""
    encoder = CLIPTextModelWithProjection(_clip_config(tokenizer))
    embeddings = encoder.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    nn.init.normal_(embeddings.weight)  # never trained: two digits must already have different embeddings
    return encoder


def _clip_config(tokenizer: PreTrainedTokenizerFast) -> CLIPTextConfig:
    vocabulary = tokenizer.get_vocab()
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=2 * TEXT_WIDTH,
        projection_dim=TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=vocabulary[START],
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[END],
    )


def _t5_encoder(tokenizer: PreTrainedTokenizerFast) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=TEXT_WIDTH,
            d_kv=TEXT_WIDTH // 2,
            d_ff=2 * TEXT_WIDTH,
            num_layers=1,
            num_heads=2,
        )
    )
