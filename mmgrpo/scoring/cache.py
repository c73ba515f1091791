"""Cached results of rewards that depend only on the sample, keyed by a hash of its content."""

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

from mmgrpo.data.image_loading import path_from_text
from mmgrpo.scoring.result_parsing import Result
from mmgrpo.types import Prompt, Sample

NOT_HASHED = ("prompt", "group", "member", "after")  # the prompt is hashed separately, the position never
ENTRY_BYTES = 400  # an entry without an explanation takes about that much
SCOPE_BYTES = 150


@final
class ResultCache:
    """Least-recently-used cache of the results of one reward with its settings, bounded in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._results: OrderedDict[bytes, Result] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes) -> Result | None:
        """The cached result of a key; None if there is none."""
        if key in self._results:
            self._results.move_to_end(key)
        return self._results.get(key)

    def put(self, key: bytes, result: Result) -> None:
        """Store a result unless it is a failure; evicts the least recently used results."""
        if result.failed or key in self._results:
            return
        self._results[key] = result
        self._num_bytes += _size(result)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(self._results.popitem(last=False)[1])


def fingerprints(samples: Sequence[Sample]) -> list[bytes | None]:
    """A hash of each sample's content except its position: the generated output, the prompt, its columns and media.

    Files are hashed by path, size and modification time. None if the content of a column or an image cannot be hashed.
    """
    prompt_digests: dict[int, bytes | None] = {}
    for sample in samples:
        if id(sample.prompt) not in prompt_digests:
            prompt_digests[id(sample.prompt)] = _prompt_digest(sample.prompt)
    return [_sample_digest(sample, prompt_digests[id(sample.prompt)]) for sample in samples]


class _UnknownError(Exception):
    """The content of a value cannot be hashed."""


def _prompt_digest(prompt: Prompt) -> bytes | None:
    media = {name: [_on_disk(medium) for medium in getattr(prompt, name)] for name in ("images", "videos")}
    return _digest([prompt.text, prompt.messages, prompt.negative, prompt.columns, media])


def _sample_digest(sample: Sample, prompt: bytes | None) -> bytes | None:
    contents = [getattr(sample, field.name) for field in fields(Sample) if field.name not in NOT_HASHED]
    return None if prompt is None else _digest([prompt, *contents])


def _digest(value: object) -> bytes | None:
    digest = hashlib.blake2b(digest_size=20)
    try:
        for part in _parts(value):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    except _UnknownError:
        return None
    return digest.digest()


def _parts(value: object) -> Iterable[bytes]:
    """The content of a value as byte strings that are unique to it."""
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
        items = value if isinstance(value, Sequence) else sorted(value, key=repr)
        yield f"{type(value).__name__} {len(value)}".encode()
        for inner in items:
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
    """Path, size and modification time of a file, or of the file that a mapping names; other values unchanged."""
    if isinstance(media, Mapping) and not media.get("bytes") and media.get("path") is not None:
        return _on_disk(media["path"])
    if isinstance(media, str) and len(media) > 4096:
        return media
    if not isinstance(media, str | Path):
        return media
    path = path_from_text(media) if isinstance(media, str) else media
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return media
    return [str(path), status.st_size, status.st_mtime_ns]


def _size(result: Result) -> int:
    explanation_bytes = 0 if result.explanation is None else 2 * len(json.dumps(result.explanation))
    return ENTRY_BYTES + explanation_bytes + SCOPE_BYTES * len(result.scopes or ())
