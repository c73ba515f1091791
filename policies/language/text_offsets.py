"""Where the text of each token ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CONTEXT = 8  # tokens before one that its text may depend on


def token_text_offsets(
    tokenizer: Any, tokens: Sequence[int], text: str, *, decode: Callable[[Sequence[int]], str] | None = None
) -> list[int]:
    """How many characters of a text there are after each of its tokens.

    A token's text is what it adds to that of the tokens before it. Of tokens that make one character together the first
    has it; special tokens have none.

    Args:
        tokenizer: turns ids into text.
        tokens: all of the text's.
        text: what they say.
        decode: ids to text; None: by the tokenizer, special tokens left out.

    Returns:
        A number for each token, never lower than the one before it.
    """
    if not tokens:
        return []
    decode = decode or (lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    pieces = [decode([token]) for token in tokens]
    if "".join(pieces) != text:
        pieces = None
    added = [_added(decode, tokens, t) for t in range(len(tokens))] if pieces is None else list(map(len, pieces))
    ends_T = np.cumsum(added)
    ends_T = np.minimum.accumulate(ends_T[::-1])[::-1]  # what a later token takes back was never there
    return np.clip(ends_T, 0, len(text)).tolist()


def _added(decode: Callable[[Sequence[int]], str], tokens: Sequence[int], t: int) -> int:
    before = list(tokens[max(0, t - CONTEXT) : t])
    with_it, without = (decode(some) for some in ([*before, tokens[t]], before))
    return len(with_it) - len(without)
