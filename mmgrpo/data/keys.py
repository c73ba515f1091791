"""The identity of a prompt that outlasts a run: of its row of data, not of its place in a file or a step."""

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
    media = [_names(prompt.images), _names(prompt.videos), *([_names(prompt.audios)] if len(prompt.audios) else [])]
    columns = [[str(name), prompt.columns[name]] for name in sorted(prompt.columns, key=str)]
    content = [prompt.text, prompt.messages, prompt.negative, columns, media]
    json_text = json.dumps(content, default=_described, skipkeys=True, ensure_ascii=False)
    return hashlib.blake2b(json_text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _names(media: Sequence[Any]) -> list[Any]:
    """Files by their names; what would be decoded as it is read is only counted."""
    if not isinstance(media, tuple | list):
        return [None] * len(media)
    return [Path(medium).name if isinstance(medium, str | Path) else medium for medium in media]


def _described(value: Any) -> Any:
    """What JSON does not know: bytes, pictures and sounds by a hash, other sequences as lists, the rest by its type."""
    if isinstance(value, Image.Image):
        return [value.mode, *value.size, hashlib.blake2b(value.tobytes(), digest_size=12).hexdigest()]
    if isinstance(value, Audio):
        return [value.sampling_rate, hashlib.blake2b(value.values.numpy().tobytes(), digest_size=12).hexdigest()]
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=12).hexdigest()
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    return type(value).__name__
