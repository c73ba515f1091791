"""The stock processors of vision-language models, set to pictures of a few dozen pixels."""

from __future__ import annotations

from typing import Any

from transformers import (
    Gemma3ImageProcessor,
    Gemma3Processor,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from . import chat_tokenizers

PATCH = 4
MERGE = 2  # patches a side that become one token
PATCHES: dict[str, Any] = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
GEMMA_SIDE = 16
GEMMA_TOKENS = 4  # of each picture


def qwen2_5_vl() -> Qwen2_5_VLProcessor:
    """Pictures keep their aspect: 64 to 576 pixels, one token for 64."""
    tokenizer = chat_tokenizers.qwen_vision()
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size={"shortest_edge": 64, "longest_edge": 576}, **PATCHES),
        tokenizer,
        Qwen2VLVideoProcessor(
            size={"shortest_edge": 64, "longest_edge": 1024},
            min_frames=2,
            max_frames=8,
            do_sample_frames=False,
            **PATCHES,
        ),
        chat_template=tokenizer.chat_template,
    )


def gemma3() -> Gemma3Processor:
    """Every picture is resized to 16 x 16 pixels and becomes 4 tokens between marks."""
    tokenizer = chat_tokenizers.gemma()
    return Gemma3Processor(
        Gemma3ImageProcessor(size={"height": GEMMA_SIDE, "width": GEMMA_SIDE}),
        tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=GEMMA_TOKENS,
    )
