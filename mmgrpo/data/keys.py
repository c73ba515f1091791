"""The identity of a prompt that outlasts a run: of its row of data, not of its place in a file or a step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from mmgrpo.types import Prompt

ID_COLUMNS = ("id", "uid", "_id", "index")
"""Columns that name a row, where every row has one and no two share it; the first such is taken."""


def prompt_keys(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """A key per prompt, each once.

    A column that names the rows if there is one, else a hash of the row's content: its text, turns and columns, and of
    what the model is shown the names of files, or the pixels of images that are in memory already. Images that lie
    encoded in a dataset are not read for it. Rows of one content are numbered in their order.

    Args:
        prompts: all of a source.

    Returns:
        Keys that are the same in every process and every run on the same rows, in the prompts' order.
    """
    for name in ID_COLUMNS:
        named = [prompt.columns.get(name) for prompt in prompts]
        plain = all(isinstance(one, str | int) and not isinstance(one, bool) for one in named)
        if plain and len({str(one) for one in named}) == len(named):
            return tuple(str(one) for one in named)
    seen: Counter[str] = Counter()
    keys = []
    for content in map(_content_hash, prompts):
        keys.append(f"{content}.{seen[content]}" if seen[content] else content)
        seen[content] += 1
    return tuple(keys)


def _content_hash(prompt: Prompt) -> str:
    whole = hashlib.blake2b(digest_size=12)
    _feed(whole, (prompt.text, prompt.messages, prompt.negative, prompt.columns))
    for media in (prompt.images, prompt.videos):
        plain = media if isinstance(media, tuple | list) else [None] * len(media)  # others are decoded as they are read
        _feed(whole, [Path(one).name if isinstance(one, str | Path) else one for one in plain])
    return whole.hexdigest()


def _feed(whole: Any, value: Any) -> None:
    """Adds a value to a hash, so that different values add different bytes; what has no content adds its type."""
    if isinstance(value, Mapping):
        _mark(whole, "mapping", len(value))
        for key in sorted(value, key=str):
            _feed(whole, str(key))
            _feed(whole, value[key])
    elif isinstance(value, str | int | float | None | bytes):
        text = value if isinstance(value, bytes) else repr(value).encode()
        _mark(whole, type(value).__name__, len(text))
        whole.update(text)
    elif isinstance(value, Image.Image):
        _mark(whole, f"image {value.mode} {value.size}", 0)
        whole.update(value.tobytes())
    elif isinstance(value, tuple | list):
        _mark(whole, "sequence", len(value))
        for inner in value:
            _feed(whole, inner)
    else:
        _mark(whole, type(value).__name__, 0)


def _mark(whole: Any, kind: str, size: int) -> None:
    whole.update(f"{kind}:{size};".encode())
