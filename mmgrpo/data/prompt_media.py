"""Images, videos and audio of rows: located and checked when prompts are loaded, decoded on access."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, final

from PIL import Image

from mmgrpo.data.audio_loading import decode_audio_text, load_audio, require_audio
from mmgrpo.data.image_loading import (
    UNREADABLE,
    apply_orientation,
    decode_image_text,
    is_fetched,
    is_url,
    open_image_file,
    path_from_text,
    unreadable_message,
)
from mmgrpo.data.videos import require_video
from mmgrpo.errors import DataError
from mmgrpo.samples import Audio, Video
from mmgrpo.system.bounded_http import download

COLUMNS = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}
"""Columns by kind of medium: for a single medium, and for a list."""

PAYLOADS = {
    "image": ("image", "image_url", "bytes", "path", "url", "base64"),
    "video": ("video", "video_url", "bytes", "path", "url"),
    "audio": ("audio", "audio_url", "input_audio", "array", "bytes", "path", "url", "base64", "data"),
}
"""Keys of a mapping that may contain a medium, by kind."""

MAX_BYTES = 2**28
"""Maximal bytes of a remote image."""

FETCH_S = 60.0
"""Timeout of a download in seconds."""

HEAD_BYTES = 2**16
"""Bytes of a stored image that are checked when prompts are loaded: most formats are identified by them."""


@final
@dataclass(frozen=True, slots=True)
class Medium:
    """An image, a video or audio, and its options (``fps``, ``max_pixels``)."""

    item: Any
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredMedium:
    """An image or audio file stored in a dataset; its bytes are read on access.

    Attributes:
        table: the dataset in arrow's format.
        row: number of the row.
        column: column of the medium.
        index: index among the media of the row in this column.
    """

    table: Any
    row: int
    column: str
    index: int

    @property
    def source(self) -> str | None:
        """Path or URL of the medium; None if the dataset contains its bytes, or nothing."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        return item["path"].as_py() if item.is_valid and not item["bytes"].is_valid else None

    @property
    def is_embedded(self) -> bool:
        """Whether the dataset contains the bytes."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        return item.is_valid and item["bytes"].is_valid

    def data(self) -> Any:
        """The bytes of the file, as a buffer without a copy. Raises DataError if the dataset does not contain them."""
        if not self.is_embedded:
            raise DataError(f"row {self.row} of the dataset holds nothing in '{self.column}'")
        return stored_items(self.table, self.row, self.column)[self.index]["bytes"].as_buffer()


@final
@dataclass(frozen=True, slots=True)
class RemoteMedium:
    """An image or audio file in an archive or, if allowed, on the network; read on access.

    Attributes:
        source: URL of the medium.
    """

    source: str

    def data(self) -> bytes:
        """The bytes of the file. Raises DataError if it cannot be read, or has more than ``MAX_BYTES`` bytes."""
        if self.source.lower().startswith(("http://", "https://")) and "::" not in self.source:
            return download(self.source, limit=MAX_BYTES, timeout_s=FETCH_S)
        from datasets.utils.file_utils import xopen

        try:
            with xopen(self.source, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except Exception as error:  # each file system raises different classes
            raise DataError(f"{self.source[:200]} cannot be read ({type(error).__name__}: {error})") from error
        if len(data) > MAX_BYTES:
            raise DataError(f"{self.source[:200]} cannot be read: it has more than {MAX_BYTES} bytes")
        return data


def require_fetch_allowed(source: str, where: str, *, allow_fetch: bool) -> None:
    """Raises DataError for a source on the network, unless ``allow_fetch``."""
    if is_fetched(source) and not allow_fetch:
        raise DataError(
            f"{where}: {source[:200]!r} would be fetched from the network, which data may not ask for; download it and "
            f"give its path, or set prompts.outside_media: [urls]"
        )


def require_inside(path: str, where: str, roots: Sequence[Path] | None) -> None:
    """Raises DataError for a file that, with links resolved, is in none of the folders; None allows all folders."""
    if roots is None:
        return
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(_real_path(root.absolute())) for root in roots):
        raise DataError(
            f"{where}: {path[:200]!r} is outside of {' and '.join(map(str, roots))}, the only folders that data may "
            "read; move it there, or set prompts.outside_media: [paths] if the data is yours"
        )


def require_reachable(value: Any, where: str, *, allow_fetch: bool, roots: Sequence[Path] | None) -> None:
    """Raises DataError for encoded media of a dataset, at any depth of a value, in a location that is not allowed.

    Args:
        value: value of a column.
        where: name of the value in errors.
        allow_fetch: whether media on the network are allowed.
        roots: allowed folders; None: all.
    """
    if isinstance(value, Mapping):
        source = value.get("path")
        if isinstance(source, str) and value.get("bytes") is None:
            require_fetch_allowed(source, where, allow_fetch=allow_fetch)
            if not is_fetched(source):
                require_inside(archive_of(source), where, roots)
        for inner in value.values():
            require_reachable(inner, where, allow_fetch=allow_fetch, roots=roots)
    if isinstance(value, list | tuple):
        for inner in value:
            require_reachable(inner, where, allow_fetch=allow_fetch, roots=roots)


def hub_folders() -> tuple[Path, ...]:
    """The download caches of ``huggingface_hub`` and ``datasets``."""
    import datasets.config
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE), Path(datasets.config.HF_DATASETS_CACHE)


def archive_of(source: str) -> str:
    """The local file of a path, or of an fsspec chain that ends in a path (``zip://a.png::b.zip``).

    Libraries disagree about the file of a chain that ends in a URL (``local:///b.zip``); the result is then the root.
    """
    last = source.rpartition("::")[2]
    return os.sep if "://" in last else last


@cache
def _real_path(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def stored_items(table: Any, row: int, column: str) -> Sequence[Any]:
    """The images or audio files in a column of a row as arrow structs with ``bytes`` and ``path``."""
    import pyarrow

    value = table[row].column(column)[0]
    if not value.is_valid:
        return ()
    return value.values if isinstance(value, pyarrow.ListScalar) else (value,)


def holds_media(feature: Any) -> bool:
    """Whether a dataset feature has, at any depth, encoded media that are decoded on access."""
    if isinstance(feature, dict):
        return set(feature) == {"bytes", "path"} or any(map(holds_media, feature.values()))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    is_json = getattr(feature, "_type", None) == "Json"  # decoded too, but no medium
    return (bool(getattr(feature, "decode", False)) and not is_json) or (inner is not None and holds_media(inner))


@final
class LazyMedia(Sequence[Any]):
    """Media of one kind; encoded ones are decoded on each access and not cached."""

    def __init__(self, items: Sequence[Any], kind: str) -> None:
        self._items = tuple(items)
        self._kind = kind

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        items = self._items[index]
        return LazyMedia(items, self._kind) if isinstance(index, slice) else _decode_item(items, self._kind)

    def __iter__(self) -> Iterator[Any]:
        return (_decode_item(item, self._kind) for item in self._items)

    def iter_local(self) -> Iterator[Any]:
        """Yields the local media, decoded; skips remote ones."""
        return (_decode_item(item, self._kind) for item in self._items if not isinstance(item, RemoteMedium))

    def __reduce__(self) -> Any:
        """Pickles the bytes of the row's media instead of the dataset."""
        loaded = (bytes(item.data()) if isinstance(item, StoredMedium | RemoteMedium) else item for item in self._items)
        return LazyMedia, (tuple(loaded), self._kind)


def lazy_media(items: Sequence[Any], kind: str = "image") -> Sequence[Any]:
    """The media of a prompt: a tuple of paths and open media, or ``LazyMedia`` if any are encoded."""
    encoded = any(isinstance(item, bytes | StoredMedium | RemoteMedium) for item in items)
    return LazyMedia(items, kind) if encoded else tuple(items)


@final
@dataclass(frozen=True, slots=True)
class RowLocation:
    """The location of a row, which resolves and checks the paths of its media.

    Attributes:
        where: name of the row in errors.
        folder: base of relative paths; None: they are not resolved.
        allow_fetch: whether images and audio on the network are allowed.
        roots: allowed folders of media; None: all.
    """

    where: str
    folder: Path | None
    allow_fetch: bool = False
    roots: tuple[Path, ...] | None = None

    def media(self, row: Mapping[str, Any], kind: str) -> list[Medium]:
        """The media of a kind in the row's columns, in order."""
        column, list_column = COLUMNS[kind]
        items = _to_list(row.get(column), is_single=kind == "video") + _to_list(row.get(list_column))
        return [self.medium(item, kind) for item in items]

    def pictures(self, value: Any) -> Sequence[Any]:
        """The images of another column, one or a list, as ``lazy_media``."""
        return lazy_media([self.medium(item, "image").item for item in _to_list(value)])

    def medium(self, item: Any, kind: str) -> Medium:
        """A medium with its path resolved, checked without decoding.

        Raises: DataError for a medium that does not exist or cannot be opened.
        """
        options: dict[str, Any] = {}
        if isinstance(item, Mapping):
            if kind == "audio" and item.get("array") is not None:
                return Medium(self._require_medium(self._load_sound(item), kind))
            keys = [key for key in PAYLOADS[kind] if item.get(key) is not None]
            if not keys:
                raise DataError(
                    f"{self.where}: the {kind} is a mapping with none of {', '.join(PAYLOADS[kind])}; it "
                    f"holds {', '.join(key for key, value in item.items() if value is not None) or 'nothing'}"
                )
            ignored = (*PAYLOADS[kind], "type", "detail", "format", "sampling_rate")
            options = {key: value for key, value in item.items() if key not in ignored and value is not None}
            inner = self.medium(item[keys[0]], kind)
            return Medium(inner.item, {**options, **inner.options})
        if kind == "video" and isinstance(item, list | tuple | Video):
            frames = lazy_media([self.medium(frame, "image").item for frame in item])
            return Medium(Video(frames, item.frame_rate) if isinstance(item, Video) else frames)
        return Medium(self._require_medium(self._locate(item, kind), kind))

    def _locate(self, item: Any, kind: str) -> Any:
        if isinstance(item, StoredMedium) and item.source is not None:
            return self._locate(item.source, kind)
        if not isinstance(item, str):
            return item
        path = path_from_text(item)
        full_path = path if self.folder is None else str(self.folder / path)
        if os.path.exists(full_path):
            require_inside(full_path, self.where, self.roots)
            return full_path
        try:
            data = _EMBEDDED[kind](item) if kind in _EMBEDDED else None
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error
        if data is not None:
            return data
        if is_url(item):
            return self._remote_medium(item, kind)
        if self.folder is None:
            return item
        raise DataError(f"{self.where}: {missing_path_message(Path(full_path))}; paths count from {self.folder}")

    def _remote_medium(self, source: str, kind: str) -> RemoteMedium:
        if kind == "video":
            raise DataError(
                f"{self.where}: the video {source[:200]!r} is a URL, and videos are not fetched; download it and give "
                "its path"
            )
        require_fetch_allowed(source, self.where, allow_fetch=self.allow_fetch)
        if not is_fetched(source):
            require_inside(archive_of(source), self.where, self.roots)
        return RemoteMedium(source)

    def _require_medium(self, item: Any, kind: str) -> Any:
        """The item, if its first bytes identify a medium of the kind; video files and remote media are not opened."""
        if isinstance(item, str) and os.path.exists(item) and not os.path.isfile(item):
            raise DataError(f"{self.where}: {item} is no ordinary file; give the path of the {kind} itself")
        is_missing = isinstance(item, str) and not os.path.exists(item)
        if isinstance(item, RemoteMedium | (Audio if kind == "audio" else Image.Image)) or is_missing:
            return item
        if not isinstance(item, str | bytes | StoredMedium):
            raise DataError(
                f"{self.where}: the {kind} must be a path{_OR[kind]}, got {type(item).__name__}; write it to a file "
                "and give its path"
            )
        if kind == "video" and isinstance(item, str):
            return item
        try:
            if kind == "video":
                require_video(bytes(item.data()) if isinstance(item, StoredMedium) else item)
            elif kind == "audio":
                data = bytes(item.data()) if isinstance(item, StoredMedium) else item
                require_audio(data, item if isinstance(item, str) else "the sound")
            else:
                _require_image(item)
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error
        except UNREADABLE as error:
            raise DataError(f"{self.where}: {unreadable_message(item, error)}") from error
        return item

    def _load_sound(self, item: Mapping[str, Any]) -> Audio:
        try:
            return load_audio(item)
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error


_EMBEDDED = {"image": decode_image_text, "audio": decode_audio_text}
_OR = {"image": "", "video": ", bytes or a list of frames", "audio": " or have an array and a sampling_rate"}


def _require_image(item: str | bytes | StoredMedium) -> None:
    if isinstance(item, str):
        open_image_file(item).close()
        return
    data = memoryview(item if isinstance(item, bytes) else item.data())
    try:
        open_image_file(BytesIO(data[:HEAD_BYTES])).close()
    except UNREADABLE:  # some formats need all bytes
        open_image_file(BytesIO(data)).close()


def _decode_item(item: Any, kind: str) -> Any:
    if not isinstance(item, bytes | StoredMedium | RemoteMedium):
        return item
    if kind == "video":
        return item if isinstance(item, bytes) else bytes(item.data())
    if kind == "audio":
        return load_audio(item if isinstance(item, bytes) else bytes(item.data()))
    try:
        return apply_orientation(open_image_file(BytesIO(item if isinstance(item, bytes) else item.data())))
    except UNREADABLE as error:
        source = item.source if isinstance(item, RemoteMedium) else item
        if isinstance(item, StoredMedium):
            source = f"row {item.row} of the dataset, column '{item.column}',"
        raise DataError(unreadable_message(source, error)) from error


def _to_list(value: Any, *, is_single: bool = False) -> list[Any]:
    """The media of a column; ``is_single``: a list is one medium, the frames of a video."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) and not is_single else [value]


def missing_path_message(path: Path) -> str:
    """The error message for a path that does not exist, with the most similar names in its folder."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does its folder"
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.4)
    return f"{path} does not exist; " + (
        f"nearest there: {', '.join(near)}" if near else "nothing there has a like name"
    )
