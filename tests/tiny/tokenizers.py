"""Tiny local tokenizers of the classes the pipelines ship with.

A vocabulary has the words of simple captions and of the templates that the pipelines wrap prompts in as single tokens;
other words split into bytes or letters. A template has about as many tokens as with the published
vocabulary, so a sequence length that fits a template there fits it here.
"""

# The Fast names are aliases that transformers 5 makes at import; the bindings of `tokenizers` carry wrong annotations.

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    CLIPTokenizerFast,  # pyrefly: ignore[missing-module-attribute]
    GemmaTokenizerFast,  # pyrefly: ignore[missing-module-attribute]
    PreTrainedTokenizerFast,
    Qwen2TokenizerFast,  # pyrefly: ignore[missing-module-attribute]
    T5TokenizerFast,  # pyrefly: ignore[missing-module-attribute]
)

CAPTIONS = """
a an the one two three of on in at with and or not red green blue yellow black white small large photo painting drawing
video image cat dog bird horse house tree river sky street square circle cube running sleeping text
"""
TEMPLATES = """
system user assistant think Describe the image by detailing the color shape size texture quantity text spatial
relationships of the objects and background You are an AI that reasons about image descriptions You give structured
responses focusing on object relationships object attribution and actions without speculation You are an assistant
designed to generate superior images with the superior degree of image - text alignment based on textual prompts or user
prompts < Prompt Start > Given User prompt Enhanced generate provides detailed visual suitable for generation Evaluate
level detail If is simple focus adding specifics colors shapes sizes textures vivid concrete scenes already refine
enhance existing details slightly overcomplicating Here examples how transform : , . '
"""
WORDS = (CAPTIONS + TEMPLATES).split()

CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

MISTRAL_CHAT_TEMPLATE = (
    "<s>{% for message in messages %}{% set tag = 'SYSTEM_PROMPT' if message.role == 'system' else 'INST' %}"
    "[{{ tag }}]{% for part in message.content %}{{ part.text if part.type == 'text' else '[IMG]' }}{% endfor %}"
    "[/{{ tag }}]{% endfor %}"
)

SPACE = "Ġ"  # how the byte-level alphabet writes a space
PIECE_SPACE = "▁"  # how sentencepiece vocabularies write it


@cache
def clip_tokenizer() -> CLIPTokenizerFast:
    """CLIP's: lower case, byte-level BPE with a word-end mark, 77 tokens at most, padded with the end of text."""
    bos, eos = "<|startoftext|>", "<|endoftext|>"
    words = [word.lower() for word in WORDS]
    tokenizer = _bpe(words + _byte_alphabet(), _byte_alphabet(), word_end="</w>")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([bos, eos])
    bos_id, eos_id = tokenizer.token_to_id(bos), tokenizer.token_to_id(eos)
    tokenizer.post_processor = processors.RobertaProcessing((eos, eos_id), (bos, bos_id), False, False)  # pyrefly: ignore[bad-argument-type]
    return CLIPTokenizerFast(tokenizer_object=tokenizer, model_max_length=77)


@cache
def qwen_tokenizer() -> Qwen2TokenizerFast:
    """Qwen2's and Qwen3's: byte-level BPE, no marks around a text, and a chat template that can skip the thinking."""
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    return Qwen2TokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", model_max_length=1024, chat_template=QWEN_CHAT_TEMPLATE
    )


@cache
def mistral_tokenizer() -> PreTrainedTokenizerFast:
    """Mistral 3's: byte-level BPE, instruction and image marks, padded on the left."""
    marks = ["<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    images = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(marks + images),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=1024,
        chat_template=MISTRAL_CHAT_TEMPLATE,
    )


@cache
def t5_tokenizer() -> T5TokenizerFast:
    """T5's and UMT5's: unigram pieces with the end of sentence after each text."""
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(letter, -10.0) for letter in [PIECE_SPACE, *_ascii()]]
    words = [(PIECE_SPACE + word, -5.0) for word in dict.fromkeys(WORDS)]
    tokenizer = Tokenizer(models.Unigram(specials + letters + words, unk_id=2, byte_fallback=False))
    metaspace = {"replacement": PIECE_SPACE, "prepend_scheme": "always"}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)]
    )
    tokenizer.decoder = decoders.Metaspace(**metaspace)
    tokenizer.add_special_tokens([name for name, _ in specials])
    tokenizer.post_processor = processors.TemplateProcessing(single=["$A", "</s>"], special_tokens=[("</s>", 1)])
    return T5TokenizerFast(tokenizer_object=tokenizer, extra_ids=0, model_max_length=128)


@cache
def gemma_tokenizer() -> GemmaTokenizerFast:
    """Gemma's: BPE over text whose spaces are pieces, the beginning of sentence before each text."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pieces = WORDS + [PIECE_SPACE + word for word in WORDS]
    tokenizer = _bpe(pieces, [PIECE_SPACE, "\n", *_ascii()], specials=specials, unk="<unk>")
    tokenizer.normalizer = normalizers.Replace(" ", PIECE_SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(PIECE_SPACE, " "), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single=["<bos>", "$A"], special_tokens=[("<bos>", 2)])
    return GemmaTokenizerFast(tokenizer_object=tokenizer, model_max_length=1024)


def _byte_level(specials: Sequence[str]) -> Tokenizer:
    tokenizer = _bpe(WORDS + [SPACE + word for word in WORDS], _byte_alphabet(), specials=specials)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(
    words: Sequence[str],
    alphabet: Sequence[str],
    *,
    specials: Sequence[str] = (),
    word_end: str = "",
    unk: str | None = None,
) -> Tokenizer:
    """A BPE with a token for each of the words, which can spell anything else in the alphabet.

    Merged here, the most frequent pair first and ties in alphabetical order: the trainer of ``tokenizers`` breaks them
    by chance, and every process would have a different vocabulary.
    """
    spelt = [[*word[:-1], word[-1] + word_end] for word in words]
    vocabulary = dict.fromkeys([*specials, *alphabet, *(symbol for symbols in spelt for symbol in symbols)])
    merges: list[tuple[str, str]] = []
    while counts := Counter(pair for symbols in spelt for pair in pairwise(symbols)):
        merges.append(min(counts, key=lambda pair: (-counts[pair], pair)))
        vocabulary["".join(merges[-1])] = None
        spelt = [_merged(symbols, merges[-1]) for symbols in spelt]
    ids = {symbol: i for i, symbol in enumerate(vocabulary)}
    model = models.BPE(ids, merges, unk_token=unk, end_of_word_suffix=word_end, fuse_unk=unk is not None)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def _merged(symbols: Sequence[str], pair: tuple[str, str]) -> list[str]:
    result: list[str] = []
    for symbol in symbols:
        if result and (result[-1], symbol) == pair:
            result[-1] += symbol
        else:
            result.append(symbol)
    return result


def _byte_alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _ascii() -> list[str]:
    return [letter for letter in string.printable if not letter.isspace()]
