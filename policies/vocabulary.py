"""Ids of a model's vocabulary that are tokens, and special tokens that belong to the text of a completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

BOUNDARIES = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id")
BOUNDARIES += ("mask_token_id",)
LANGUAGES = ("src_lang", "tgt_lang", "language")
"""Attributes of tokenizers of translators and recognizers, whose special tokens name languages and tasks."""
BOUNDARY_NAMES = re.compile(
    r"(begin|start|end)_of_(text|turn|utterance|sentence|role|image|media)|endoftext|im_(start|end|sep)|header_id|"
    r"\b(eot|eom|eos|bos|pad)(_id|_token)?\b|row_\d+_col_\d+|global-img|\[/?(INST|SYS)",
    re.IGNORECASE,
)
"""Names of tokens that published models put between texts, turns and parts of an image, with or without a template."""
TAG = re.compile(r"<(/?)([^<>/|]+)>")


def unnamed_ids(tokenizer: Any, vocabulary: int) -> list[int]:
    """Ids below ``vocabulary`` that are no token of the tokenizer: the padding of a model's embeddings."""
    named = set(tokenizer.get_vocab().values())
    return [] if len(named) >= vocabulary else [value for value in range(vocabulary) if value not in named]


def num_logits(model: Any) -> int:
    """Number of logits per position of a transformers model."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    rows = getattr(head, "out_features", None)
    return rows if isinstance(rows, int) else int(model.config.get_text_config(decoder=True).vocab_size)


class TextDecoder:
    """Decodes token ids to the text that rewards, reports and environments read.

    Padding, beginning- and end-of-sequence tokens, and the tokens that the chat template writes between turns are
    removed. Other special tokens are part of the text, such as the tag ``<answer>`` added as a special token.

    Attributes:
        shown: ids of the special tokens that are part of the text.
    """

    def __init__(
        self, tokenizer: Any, *, control_ids: Iterable[int] = (), turns: Callable[[], str] | None = None
    ) -> None:
        """Classifies the special tokens of a tokenizer.

        Args:
            tokenizer: of transformers.
            control_ids: further special tokens that are not part of a text, such as those that end a completion.
            turns: renders a user and an assistant turn by the chat template; None without one.
        """
        self._tokenizer = tokenizer
        special = {value: str(token) for value, token in tokenizer.added_tokens_decoder.items() if token.special}
        special |= dict(zip(tokenizer.all_special_ids, map(str, tokenizer.all_special_tokens), strict=True))
        hidden = {getattr(tokenizer, name, None) for name in BOUNDARIES} | set(control_ids)
        tags = {value for value, token in special.items() if _is_tag(token, set(special.values()))}
        if any(hasattr(tokenizer, name) for name in LANGUAGES):
            hidden |= set(special) - tags
        hidden |= {value for value, token in special.items() if BOUNDARY_NAMES.search(token)}
        others = set(special) - hidden - tags
        if others and turns is not None:
            rendered = turns()
            others -= {value for value in others if special[value] in rendered}
        self.text_ids = frozenset(others | (tags - hidden))
        self._hidden = frozenset(special) - self.text_ids

    def __call__(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""
        ids = [int(token) for token in tokens]
        if self.text_ids.isdisjoint(ids):
            return self._tokenizer.decode(ids, skip_special_tokens=True)
        return self._tokenizer.decode([value for value in ids if value not in self._hidden], skip_special_tokens=False)


def _is_tag(token: str, tokens: set[str]) -> bool:
    """Whether a token opens or closes an element whose other tag is a token too."""
    match = TAG.fullmatch(token)
    return match is not None and (f"<{match[2]}>" if match[1] else f"</{match[2]}>") in tokens
