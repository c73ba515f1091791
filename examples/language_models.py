"""The models of the language quickstarts: stock classes, small enough to train on two CPU cores.

``quickstart/digits-vlm`` and ``quickstart/zoom-vlm`` show images to a Qwen2.5-VL of 0.5 M weights,
``quickstart/arithmetic-text`` gives sums to a Llama of 0.3 M, ``quickstart/miniwob-click`` web pages to one of 0.1 M.
Tokenizers are built here; nothing is downloaded.
"""

# The bindings of `tokenizers` carry wrong annotations.

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

END, PADDING, UNKNOWN = "<|im_end|>", "<|endoftext|>", "<|unknown|>"
START = "<|im_start|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
DIGITS = tuple("0123456789")
CALL_PIECES = ('<tool_call>{"name": "multiply", "arguments": {"a": ', ', "b": ', "}}</tool_call>")
"""A function call with two numbers: the text before, between and after them, one token each."""
ZOOM_PIECES = ('<tool_call>{"name": "zoom", "arguments": {"bbox_2d": [', ", ", "]}}</tool_call>")
"""A call with four numbers: the text before, between and after them, one token each."""
CLICK_PIECES = (" click(element=", ")")
"""A click on an element: the text before and after its number, one token each."""
NUM_ELEMENTS = 16
"""The largest number of an element of a page."""
PAGE_WORDS = (
    *("Click", "on", "the", "a", "all", "widget"),
    *("div", "span", "label", "button", "checkbox", "radio", "text", "textarea"),
    *("submit", "okay", "ok", "yes", "no", "cancel", "next", "previous"),
    *("Submit", "Okay", "Ok", "Yes", "No", "Cancel", "Next", "Previous"),
)
"""The words of instructions, the kinds of elements and the names of buttons."""
CANVAS = 128
"""Pixels of a side of the images of ``quickstart/zoom-vlm``; their coordinates are multiples of 8."""
AUDIO, AUDIO_START, AUDIO_END = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
QUESTION_WORDS = ("user", "assistant", "which", "digit", "is", "shown", "?", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PATCH = 4
MERGE = 2
IMAGE_PIXELS = 256  # a digit of 8 x 8 is enlarged to 16 x 16: 4 x 4 patches, 4 tokens
WIDTH = 96
AUDIO_HZ, AUDIO_BANDS, AUDIO_HOP = 16_000, 80, 320  # a second of sound: 50 spectra of 80 bands, 12 tokens


def digits_vlm(seed: int = 0) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
    """An untrained vision-language model for 8 x 8 digits, and its processor; the seed fixes its weights."""
    return _digits_model(_question_processor(), seed)


def served_digits_vlm(seed: int = 0) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
    """The model of ``digits_vlm`` with three attention heads of size 32 in place of four of size 24, which vLLM does
    not have on the CPU, and its processor."""
    heads = {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "rope_parameters": {"rope_type": "default", "mrope_section": [6, 5, 5]},
    }
    return _digits_model(_question_processor(), seed, **heads)


def zoom_vlm(seed: int = 0) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
    """An untrained vision-language model that may call ``zoom``, and its processor; the seed fixes its weights."""
    before, _, after = ZOOM_PIECES
    coordinates = [str(number) for number in range(0, CANVAS + 1, 8) if str(number) not in DIGITS]
    words = [*QUESTION_WORDS, "tool", *DIGITS, *coordinates, before, ",", after]
    split = "|".join([re.escape(before), re.escape(after), r"</?answer>|[0-9]+|[A-Za-z]+|\?|,"])
    return _digits_model(_digits_processor(words, split), seed, initializer_range=0.1)


def _digits_model(
    processor: Qwen2_5_VLProcessor, seed: int, *, initializer_range: float = 0.02, **text: Any
) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
    ids = processor.tokenizer.get_vocab()
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": WIDTH,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "initializer_range": initializer_range,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4]},
            "bos_token_id": None,
            "eos_token_id": ids[END],
            "pad_token_id": ids[PADDING],
            **text,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [0, 1, 2],
            "initializer_range": initializer_range,
        },
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2_5_VLForConditionalGeneration(config), processor


def keypad_lm(seed: int = 0) -> tuple[Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor]:
    """An untrained model from one second of audio to digits, and its processor; the seed fixes its weights."""
    tokenizer = _tokenizer(
        [PADDING, START, END, AUDIO_START, AUDIO_END, AUDIO],
        ["user", "assistant", "which", "keys", "?", *DIGITS],
        split=r"[0-9]|[A-Za-z]+|\?",
        eos_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
    )
    extractor = WhisperFeatureExtractor(AUDIO_BANDS, AUDIO_HZ, hop_length=AUDIO_HOP, chunk_length=1)
    config = Qwen2AudioConfig(
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "initializer_range": WIDTH**-0.5,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        audio_config={
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": AUDIO_BANDS,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "d_model": 64,
            "max_source_positions": AUDIO_HZ // AUDIO_HOP // 2,
            "initializer_range": 0.1,
        },
        audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),  # pyrefly: ignore[bad-argument-type]
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2AudioForConditionalGeneration(config)
    return model, Qwen2AudioProcessor(extractor, tokenizer, chat_template=CHAT_TEMPLATE)


def arithmetic_lm(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained language model that reads and writes sums digit by digit; the seed fixes its weights."""
    tokenizer = _tokenizer([END], [*DIGITS, "+", "="], split=".", eos_token=END, pad_token=END)
    tokenizer.backend_tokenizer.decoder = Fuse()  # no spaces between digits
    return _llama(tokenizer, max_positions=32, seed=seed), tokenizer


def calculator_lm(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained language model that reads products and may call ``multiply``; the seed fixes its weights."""
    split = "|".join([*(re.escape(piece) for piece in CALL_PIECES), "."])
    tokenizer = _tokenizer([END], [*DIGITS, "*", "=", *CALL_PIECES], split=split, eos_token=END, pad_token=END)
    tokenizer.backend_tokenizer.decoder = Fuse()
    return _llama(tokenizer, max_positions=64, seed=seed), tokenizer


def clicker_lm(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained language model that reads ``PAGE_WORDS`` and numbers of elements; the seed fixes its weights."""
    numbers = [str(number + 1) for number in range(NUM_ELEMENTS)]
    pieces = "|".join(map(re.escape, CLICK_PIECES))
    split = rf"{pieces}|(?<=\[)\d+(?=\])|(?<==)\d+(?=\))|(?<!\w)(?:{'|'.join(PAGE_WORDS)})(?!\w)"
    tokenizer = _tokenizer([END], [*PAGE_WORDS, *numbers, *CLICK_PIECES], split=split, eos_token=END, pad_token=END)
    tokenizer.backend_tokenizer.decoder = Fuse()
    return _llama(tokenizer, max_positions=128, seed=seed, width=64, initializer_range=0.125), tokenizer


def rewriter_lm(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained language model that reads requests for digits and writes captions, word by word."""
    from mmgrpo.examples.digits import DIGIT_NAMES

    words = ["a", "handwritten", "the", "digit", "after", "before", *DIGIT_NAMES]
    tokenizer = _tokenizer([END], words, split="[a-z]+", eos_token=END, pad_token=END)
    return _llama(tokenizer, max_positions=32, seed=seed), tokenizer


def _llama(
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_positions: int,
    seed: int,
    width: int = 128,
    initializer_range: float = 0.02,
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        initializer_range=initializer_range,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max_positions,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def _question_processor() -> Qwen2_5_VLProcessor:
    return _digits_processor([*QUESTION_WORDS, *DIGITS], r"</?answer>|[0-9]|[A-Za-z]+|\?")


def _digits_processor(words: Sequence[str], split: str) -> Qwen2_5_VLProcessor:
    tokenizer = _tokenizer(
        [PADDING, START, END, VISION_START, VISION_END, IMAGE, VIDEO],
        words,
        split=split,
        eos_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
    )
    size = {"shortest_edge": IMAGE_PIXELS, "longest_edge": IMAGE_PIXELS}
    patches = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=size, **patches),
        tokenizer,
        Qwen2VLVideoProcessor(size=size, **patches),
        chat_template=CHAT_TEMPLATE,
    )


def _tokenizer(specials: Sequence[str], words: Sequence[str], *, split: str, **names: str) -> PreTrainedTokenizerFast:
    """A word-level tokenizer.

    Args:
        specials: special tokens.
        words: all others.
        split: regular expression of a word; text between words is dropped.
        **names: roles of the special tokens.

    Returns:
        The tokenizer, without a token for the beginning of a text.
    """
    unknown = names.get("unk_token")
    pieces = [*specials, *([unknown] if unknown else []), *words]
    tokenizer = Tokenizer(WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=unknown or END))
    tokenizer.add_special_tokens(list(specials))
    tokenizer.pre_tokenizer = Split(Regex(split), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)
