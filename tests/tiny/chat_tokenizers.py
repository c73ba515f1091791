"""Tiny tokenizers of language models: the families' special tokens and chat templates over a few hundred pieces.

Byte-level, so that any text survives encoding and decoding: a word of ``WORDS`` is one token, with or without the space
before it, and anything else falls apart into bytes. Nothing is trained, so the ids are the same in every process.
"""

# The bindings of `tokenizers` carry wrong annotations.
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .tokenizers import QWEN_WORDS, SPACE

WORDS = """
a an the one two three of on in is at with and or not what which how many colour picture digit word shown answer red
green blue yellow black white large small cat dog house tree sky circle square left right yes no You are helpful
assistant user system model Describe Say Count video image frame think
""".split()  # noqa: SIM905

QWEN_VISION_TOKENS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

QWEN_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

QWEN_VISION_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first = (messages[0].content if messages[0].content is string else messages[0].content[0].text) + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n{{ first if loop.first else '' }}"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}{% for part in message.content %}"
    "{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def qwen() -> PreTrainedTokenizerFast:
    """Qwen2's and Qwen3's: ChatML with a system turn of its own, no beginning-of-sequence token."""
    return build(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        QWEN_TEMPLATE,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def qwen_vision() -> PreTrainedTokenizerFast:
    """Qwen-VL's: ChatML with marks around each picture and video."""
    return build(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *QWEN_VISION_TOKENS],
        QWEN_VISION_TEMPLATE,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def llama() -> PreTrainedTokenizerFast:
    """Llama 3's: headed turns, several ends, a beginning that template and tokenizer both add."""
    marks = ["<|eom_id|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|finetune_right_pad_id|>"]
    return build(
        ["<|begin_of_text|>", "<|end_of_text|>", *marks],
        LLAMA_TEMPLATE,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|finetune_right_pad_id|>",
    )


def gemma() -> PreTrainedTokenizerFast:
    """Gemma's: the system turn joins the first user turn, turns end with a token that is not the tokenizer's end."""
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    return build(
        ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", *names.values()],
        GEMMA_TEMPLATE,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=names,
    )


def build(
    specials: Sequence[str],
    chat_template: str,
    *,
    bos_token: str | None = None,
    extra_special_tokens: Mapping[str, str] | None = None,
    **tokens: str,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, padded on the left; it begins each text with ``bos_token`` where there is one.

    Args:
        specials: the special tokens, which get the first ids.
        chat_template: the family's template.
        bos_token: the token that begins a text.
        extra_special_tokens: attributes of the tokenizer that name further special tokens.
        **tokens: the end, the padding and the unknown token by their usual names.

    Returns:
        The tokenizer.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*specials, *alphabet, *WORDS, *(SPACE + word for word in WORDS)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    if bos_token is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos_token, "$A"], special_tokens=[(bos_token, vocabulary[bos_token])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos_token,
        extra_special_tokens=dict(extra_special_tokens or {}),
        chat_template=chat_template,
        padding_side="left",
        model_max_length=1024,
        **tokens,
    )
