"""Known results of rewards that depend on the sample alone, found again by a hash of all that the sample holds."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image

from mmgrpo.data.media import path_of
from mmgrpo.scoring.result_parsing import Result
from mmgrpo.types import Prompt, Sample

PLACE = ("prompt", "group", "member", "after")  # what is hashed apart, and where a sample stands, which is not
ENTRY_BYTES = 400  # an entry without an explanation takes about that much
SCOPE_BYTES = 150  # a part


@final
class ResultCache:
    """Results of one reward with its settings, the latest used, in bounded memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._results: OrderedDict[bytes, Result] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes) -> Result | None:
        """What is known under a key."""
        if key in self._results:
            self._results.move_to_end(key)
        return self._results.get(key)

    def put(self, key: bytes, result: Result) -> None:
        """Keeps a result, if it is none of a failure; what was longest not asked for makes room."""
        if result.failed or key in self._results:
            return
        self._results[key] = result
        self._num_bytes += _size(result)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(self._results.popitem(last=False)[1])


def fingerprints(samples: Sequence[Sample]) -> list[bytes | None]:
    """A hash of all that each sample holds but its place: what was generated, the prompt, its columns and media.

    Files count by path, size and time of change. None where a column or an image is of a kind without known content.
    """
    asked: dict[int, bytes | None] = {}
    for sample in samples:
        if id(sample.prompt) not in asked:
            asked[id(sample.prompt)] = _prompt_digest(sample.prompt)
    return [_sample_digest(sample, asked[id(sample.prompt)]) for sample in samples]


class _UnknownError(Exception):
    """Something whose content cannot be hashed."""


def _prompt_digest(prompt: Prompt) -> bytes | None:
    media = {name: [_on_disk(one) for one in getattr(prompt, name)] for name in ("images", "videos")}
    return _digest([prompt.text, prompt.messages, prompt.negative, prompt.columns, media])


def _sample_digest(sample: Sample, prompt: bytes | None) -> bytes | None:
    made = [getattr(sample, field.name) for field in fields(Sample) if field.name not in PLACE]
    return None if prompt is None else _digest([prompt, *made])


def _digest(value: object) -> bytes | None:
    known = hashlib.blake2b(digest_size=20)
    try:
        for part in _parts(value):
            known.update(len(part).to_bytes(8))
            known.update(part)
    except _UnknownError:
        return None
    return known.digest()


def _parts(value: object) -> Iterable[bytes]:
    """The content of a value in pieces that no other value has."""
    if value is None or isinstance(value, bool | int | float | str):
        yield f"{type(value).__name__}:{value!r}".encode(errors="surrogatepass")
    elif isinstance(value, bytes):
        yield from (b"bytes", value)
    elif isinstance(value, Image.Image):
        yield from (f"{value.mode}{value.size}{value.getpalette()}".encode(), value.tobytes())
    elif isinstance(value, Path):
        yield str(value).encode(errors="surrogatepass")
    elif isinstance(value, np.ndarray | np.generic | torch.Tensor):
        yield from _array(value)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key, inner in value.items():
            yield from (*_parts(key), *_parts(inner))
    elif isinstance(value, Sequence | set | frozenset):
        many = value if isinstance(value, Sequence) else sorted(value, key=repr)
        yield f"{type(value).__name__} {len(value)}".encode()
        for inner in many:
            yield from _parts(inner)
    else:
        raise _UnknownError


def _array(value: np.ndarray | np.generic | torch.Tensor) -> Iterable[bytes]:
    array = np.asarray(value.detach().float().cpu() if isinstance(value, torch.Tensor) else value)
    if array.dtype.hasobject:
        raise _UnknownError
    yield f"{array.dtype}{array.shape}".encode()
    yield array.tobytes()


def _on_disk(media: object) -> object:
    """A file by path, size and time of change; a mapping that only names one the same way; anything else as it is."""
    if isinstance(media, Mapping) and not media.get("bytes") and media.get("path") is not None:
        return _on_disk(media["path"])
    if isinstance(media, str) and len(media) > 4096:
        return media
    if not isinstance(media, str | Path):
        return media
    path = path_of(media) if isinstance(media, str) else media
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return media
    return [str(path), found.st_size, found.st_mtime_ns]


def _size(result: Result) -> int:
    explained = 0 if result.explanation is None else 2 * len(json.dumps(result.explanation))
    return ENTRY_BYTES + explained + SCOPE_BYTES * len(result.scopes or ())
