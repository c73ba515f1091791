"""Tiny tokenizers of language models: the families' special tokens and chat templates over a few hundred pieces.

Byte-level, so that any text survives encoding and decoding: a word of ``WORDS`` is one token, with or without the space
before it, and anything else falls apart into bytes. The ids are the same in every process.
"""

# The bindings of `tokenizers` carry wrong annotations.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.tiny import chat_templates
from tests.tiny.tokenizers import QWEN_WORDS, SPACE

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

GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
GEMMA_NAMES = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
MISTRAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_ENDS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def qwen() -> PreTrainedTokenizerFast:
    """Qwen2's: ChatML with a separate system turn, no beginning-of-sequence token."""
    return build(CHATML, chat_templates.QWEN, **CHATML_ENDS)


def qwen3() -> PreTrainedTokenizerFast:
    """Qwen3's: a template that can skip the thinking."""
    return build([*CHATML, "<think>", "</think>"], chat_templates.QWEN3, **CHATML_ENDS)


def qwen_vision() -> PreTrainedTokenizerFast:
    """Qwen-VL's: ChatML with marks around each image and video."""
    return build([*CHATML, *QWEN_VISION_TOKENS], chat_templates.QWEN_VISION, **CHATML_ENDS)


def llama() -> PreTrainedTokenizerFast:
    """Llama 3's: headed turns, several ends, a beginning that template and tokenizer both add."""
    marks = ["<|eom_id|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|finetune_right_pad_id|>"]
    return build(
        ["<|begin_of_text|>", "<|end_of_text|>", *marks],
        chat_templates.LLAMA,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|finetune_right_pad_id|>",
    )


def gemma2() -> PreTrainedTokenizerFast:
    """Gemma 2's: no system turn; turns end with a token that is not the tokenizer's end."""
    return build(GEMMA, chat_templates.GEMMA2, **GEMMA_NAMES)


def gemma3() -> PreTrainedTokenizerFast:
    """Gemma 3's: the system turn joins the first user turn, marks around each image."""
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    return build([*GEMMA, *names.values()], chat_templates.GEMMA3, extra_special_tokens=names, **GEMMA_NAMES)


def paligemma() -> PreTrainedTokenizerFast:
    """PaliGemma's: Gemma's without turns; its processor adds the beginning, after the image."""
    names = {"image_token": "<image>"}
    return build([*GEMMA, "<image>"], chat_templates.PALIGEMMA, extra_special_tokens=names, **GEMMA_NAMES)


def mistral() -> PreTrainedTokenizerFast:
    """Mistral's: instruction marks, no system turn, no padding token."""
    return build(MISTRAL, chat_templates.MISTRAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def cohere() -> PreTrainedTokenizerFast:
    """Command R's: a mark for the turn and one for who speaks."""
    names = ["USER_TOKEN", "CHATBOT_TOKEN", "SYSTEM_TOKEN", "START_OF_TURN_TOKEN", "END_OF_TURN_TOKEN"]
    return build(
        ["<PAD>", "<BOS_TOKEN>", *(f"<|{name}|>" for name in names)],
        chat_templates.COHERE,
        bos_token="<BOS_TOKEN>",
        eos_token="<|END_OF_TURN_TOKEN|>",
        pad_token="<PAD>",
    )


def idefics3() -> PreTrainedTokenizerFast:
    """Idefics 3's and SmolVLM's: a mark for each tile of an image, turns without ChatML's marks."""
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
    return build(
        [*CHATML, *marks, *tiles],
        chat_templates.IDEFICS,
        bos_token="<|im_start|>",
        eos_token="<end_of_utterance>",
        pad_token="<|im_end|>",
        adds_bos=False,
    )


def llava_next() -> PreTrainedTokenizerFast:
    """LLaVA-NeXT's over Mistral: instruction marks, one image token."""
    return build(
        [*MISTRAL, "<image>", "<pad>"],
        chat_templates.LLAVA_NEXT,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )


def llava_onevision() -> PreTrainedTokenizerFast:
    """LLaVA-OneVision's over Qwen2: ChatML, one image and one video token."""
    return build([*CHATML, "<image>", "<video>"], chat_templates.LLAVA_ONEVISION, **CHATML_ENDS)


def internvl() -> PreTrainedTokenizerFast:
    """InternVL's over Qwen2: ChatML, marks around each tile."""
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    return build([*CHATML, *names.values()], chat_templates.INTERNVL, extra_special_tokens=names, **CHATML_ENDS)


def build(
    specials: Sequence[str],
    chat_template: str,
    *,
    bos_token: str | None = None,
    extra_special_tokens: Mapping[str, str] | None = None,
    adds_bos: bool = True,
    **tokens: str,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, padded on the left; a text begins with ``bos_token`` where there is one.

    Args:
        specials: the special tokens, which get the first ids.
        chat_template: the family's template.
        bos_token: the token that begins a text.
        extra_special_tokens: attributes of the tokenizer that name further special tokens.
        adds_bos: the tokenizer itself adds ``bos_token``.
        **tokens: the end, the padding and the unknown token by their usual names.

    Returns:
        The tokenizer.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = merges_of(tuple(form for word in WORDS for form in (word, SPACE + word)))
    pieces = [*specials, *alphabet, *(first + second for first, second in merges)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    if bos_token is not None and adds_bos:
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


@cache
def merges_of(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Merges, the most urgent first, under which each of the words becomes one token.

    A word that the merges so far leave in pieces adds one for its first two. Later merges are less urgent, so they
    leave the words before as they are.
    """
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        pieces = list(word)
        while len(pieces) > 1:
            pairs = list(pairwise(pieces))
            chosen = next((pair for pair in merges if pair in pairs), pairs[0])
            merges[chosen] = None
            at = pairs.index(chosen)
            pieces[at : at + 2] = ["".join(chosen)]
    return list(merges)
