"""The stock processors of vision-language models, for images of a few dozen pixels."""

from __future__ import annotations

from typing import Any

from transformers import (
    Gemma3ImageProcessor,
    Gemma3Processor,
    GotOcr2ImageProcessor,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    PaliGemmaProcessor,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    SiglipImageProcessor,
)

from tests.tiny import chat_templates, chat_tokenizers

PATCH = 4  # pixels a side
MERGE = 2  # patches a side that become one token, where a model merges them
SIDE = 16  # pixels a side of a tile, for models whose images or tiles have one size
TILE_PATCHES = (SIDE // PATCH) ** 2
TILE_TOKENS = TILE_PATCHES // MERGE**2  # of a merged tile
TILE = {"height": SIDE, "width": SIDE}
PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]  # heights and widths that an image is tiled to
QWEN_PATCHES: dict[str, Any] = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
QWEN_PICTURE = {"shortest_edge": 64, "longest_edge": 576}  # areas in pixels
QWEN_VIDEO = {"shortest_edge": 64, "longest_edge": 2048}  # of all frames together


def qwen2_vl() -> Qwen2VLProcessor:
    """Pictures keep their aspect: 64 to 576 pixels, one token for 64; a video has one for 64 of two frames."""
    tokenizer = chat_tokenizers.qwen_vision()
    return Qwen2VLProcessor(_qwen_images(), tokenizer, _qwen2_videos(), chat_template=tokenizer.chat_template)


def qwen2_5_vl() -> Qwen2_5_VLProcessor:
    """As Qwen2-VL's, with the seconds between the frames of a video."""
    tokenizer = chat_tokenizers.qwen_vision()
    return Qwen2_5_VLProcessor(_qwen_images(), tokenizer, _qwen2_videos(), chat_template=tokenizer.chat_template)


def qwen3_vl() -> Qwen3VLProcessor:
    """As Qwen2-VL's, with the time in words before every two frames of a video."""
    tokenizer = chat_tokenizers.qwen_vision()
    videos = Qwen3VLVideoProcessor(size=QWEN_VIDEO, do_sample_frames=False, cap_pixels_per_frame=False, **QWEN_PATCHES)
    return Qwen3VLProcessor(_qwen_images(), tokenizer, videos, chat_template=chat_templates.QWEN_VISION)


def idefics3() -> Idefics3Processor:
    """An image is enlarged to 32 pixels on its longer side, cut into tiles of 16 x 16 and read once more in full."""
    tokenizer = chat_tokenizers.idefics3()
    images = Idefics3ImageProcessor(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})
    return Idefics3Processor(images, tokenizer, image_seq_len=TILE_TOKENS, chat_template=chat_templates.IDEFICS)


def llava_next() -> LlavaNextProcessor:
    """An image becomes two or four tiles, whose padding is left out, and an overview."""
    tokenizer = chat_tokenizers.llava_next()
    images = LlavaNextImageProcessor(size={"shortest_edge": SIDE}, crop_size=TILE, image_grid_pinpoints=PINPOINTS)
    return LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )


def llava_onevision() -> LlavaOnevisionProcessor:
    """An image alone is tiled as in LLaVA-NeXT, several images are not, a video's frames are pooled."""
    tokenizer = chat_tokenizers.llava_onevision()
    return LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=TILE, image_grid_pinpoints=PINPOINTS),
        tokenizer,
        LlavaOnevisionVideoProcessor(size=TILE),
        num_image_tokens=TILE_PATCHES,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )


def internvl() -> InternVLProcessor:
    """An image becomes up to two tiles and an overview; a frame of a video is one tile."""
    tokenizer = chat_tokenizers.internvl()
    return InternVLProcessor(
        GotOcr2ImageProcessor(size=TILE, crop_to_patches=True, max_patches=2),
        tokenizer,
        InternVLVideoProcessor(size=TILE),
        image_seq_length=TILE_TOKENS,
        chat_template=tokenizer.chat_template,
    )


def gemma3() -> Gemma3Processor:
    """Every image is resized to 16 x 16 pixels and becomes 4 tokens between marks."""
    tokenizer = chat_tokenizers.gemma3()
    return Gemma3Processor(
        Gemma3ImageProcessor(size=TILE),
        tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=TILE_TOKENS,
    )


def paligemma() -> PaliGemmaProcessor:
    """The image, 16 tokens, comes before the beginning of the text."""
    tokenizer = chat_tokenizers.paligemma()
    images = SiglipImageProcessor(size=TILE, image_seq_length=TILE_PATCHES)
    return PaliGemmaProcessor(images, tokenizer, chat_template=tokenizer.chat_template)


def _qwen_images() -> Qwen2VLImageProcessor:
    return Qwen2VLImageProcessor(size=QWEN_PICTURE, **QWEN_PATCHES)


def _qwen2_videos() -> Qwen2VLVideoProcessor:
    return Qwen2VLVideoProcessor(size=QWEN_VIDEO, min_frames=2, max_frames=8, do_sample_frames=False, **QWEN_PATCHES)
