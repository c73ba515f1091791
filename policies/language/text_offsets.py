"""Offsets of tokens in their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CONTEXT = 8  # preceding tokens that the text of a token may depend on


def token_text_offsets(
    tokenizer: Any, tokens: Sequence[int], text: str, *, decode: Callable[[Sequence[int]], str] | None = None
) -> list[int]:
    """The length of a text, in characters, after each of its tokens.

    A token's text is the difference that it makes to the text of the tokens before it. If several tokens make one
    character together, it belongs to the first; special tokens have no text.

    Args:
        tokenizer: the model's tokenizer.
        tokens: all tokens of the text.
        text: the text.
        decode: ids to text; None: by the tokenizer, without special tokens.

    Returns:
        One number per token, non-decreasing.
    """
    if not tokens:
        return []
    decode = decode or (lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    pieces = [decode([token]) for token in tokens]
    if "".join(pieces) != text:
        pieces = None
    added = [_added(decode, tokens, t) for t in range(len(tokens))] if pieces is None else list(map(len, pieces))
    ends_T = np.cumsum(added)
    ends_T = np.minimum.accumulate(ends_T[::-1])[::-1]  # text that a later token removes does not count
    return np.clip(ends_T, 0, len(text)).tolist()


def _added(decode: Callable[[Sequence[int]], str], tokens: Sequence[int], t: int) -> int:
    before = list(tokens[max(0, t - CONTEXT) : t])
    with_it, without = (decode(some) for some in ([*before, tokens[t]], before))
    return len(with_it) - len(without)
