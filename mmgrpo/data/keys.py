"""Keys of prompts that are stable across runs: they depend on the row, not on its position in a file or a step."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.system.lazy import PIL_Image as Image
from mmgrpo.types import Audio, Prompt

ID_COLUMNS = ("id", "uid", "_id", "index")
"""Columns with an identifier of the row; the first one that every row has, with unique values, is used."""


def prompt_keys(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """A unique key per prompt.

    The key is the value of the identifier column, if there is one, else a hash of the row's content: its text, turns
    and columns, and of its media the names of files, or the pixels of images in memory. Images that a dataset stores
    encoded are not read. Rows of equal content are numbered in order.

    Args:
        prompts: all prompts of a source.

    Returns:
        Keys in the order of the prompts, the same in every process and every run on the same rows.
    """
    for name in ID_COLUMNS:
        ids = [prompt.columns.get(name) for prompt in prompts]
        is_plain = all(isinstance(value, str | int) and not isinstance(value, bool) for value in ids)
        if is_plain and len({str(value) for value in ids}) == len(ids):
            return tuple(str(value) for value in ids)
    counts: Counter[str] = Counter()
    keys = []
    for content in map(_content_hash, prompts):
        keys.append(f"{content}.{counts[content]}" if counts[content] else content)
        counts[content] += 1
    return tuple(keys)


def _content_hash(prompt: Prompt) -> str:
    media = [
        _file_names(prompt.images),
        _file_names(prompt.videos),
        *([_file_names(prompt.audios)] if len(prompt.audios) else []),
    ]
    columns = [[str(name), prompt.columns[name]] for name in sorted(prompt.columns, key=str)]
    content = [prompt.text, prompt.messages, prompt.negative, columns, media]
    json_text = json.dumps(content, default=_to_json, skipkeys=True, ensure_ascii=False)
    return hashlib.blake2b(json_text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _file_names(media: Sequence[Any]) -> list[Any]:
    """The media with files replaced by their names; None for each medium that would be decoded on access."""
    if not isinstance(media, tuple | list):
        return [None] * len(media)
    return [Path(medium).name if isinstance(medium, str | Path) else medium for medium in media]


def _to_json(value: Any) -> Any:
    """Values that JSON does not support: bytes, images and audio as hashes, the rest by the name of its type."""
    if isinstance(value, Image.Image):
        return [value.mode, *value.size, hashlib.blake2b(value.tobytes(), digest_size=12).hexdigest()]
    if isinstance(value, Audio):
        return [value.sampling_rate, hashlib.blake2b(value.values.numpy().tobytes(), digest_size=12).hexdigest()]
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=12).hexdigest()
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    return type(value).__name__
