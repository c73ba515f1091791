"""The images, videos and sounds of a row of data: found, checked, and opened only when they are looked at."""

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
from mmgrpo.samples import Audio
from mmgrpo.system.bounded_http import download

COLUMNS = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}
"""The columns that hold each kind of medium: one, and a list."""

PAYLOADS = {
    "image": ("image", "image_url", "bytes", "path", "url", "base64"),
    "video": ("video", "video_url", "bytes", "path", "url"),
    "audio": ("audio", "audio_url", "input_audio", "array", "bytes", "path", "url", "base64", "data"),
}
"""The keys under which a mapping holds a medium."""

MAX_BYTES = 2**28
"""What an image that lies elsewhere may weigh."""

FETCH_S = 60.0
"""Seconds that it may take to come."""

HEAD_BYTES = 2**16
"""How much of a stored image is looked at when it is loaded: enough for most to say what they are."""


@final
@dataclass(frozen=True, slots=True)
class Medium:
    """An image, a video or a sound, and the options that stood beside it (``fps``, ``max_pixels``)."""

    item: Any
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredMedium:
    """The bytes of one image or sound of a dataset, read whenever they are asked for.

    Attributes:
        table: the dataset in arrow's format.
        row: its row.
        column: the column of such media.
        index: which of the row's media.
    """

    table: Any
    row: int
    column: str
    index: int

    @property
    def source(self) -> str | None:
        """Where it lies: a path or a URL; None if it lies in the dataset itself or nowhere."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        return item["path"].as_py() if item.is_valid and not item["bytes"].is_valid else None

    @property
    def is_here(self) -> bool:
        """Whether the dataset holds it itself."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        return item.is_valid and item["bytes"].is_valid

    def data(self) -> Any:
        """The file, as a buffer that is not copied. Raises DataError if the dataset does not hold it."""
        if not self.is_here:
            raise DataError(f"row {self.row} of the dataset holds nothing in '{self.column}'")
        return stored_items(self.table, self.row, self.column)[self.index]["bytes"].as_buffer()


@final
@dataclass(frozen=True, slots=True)
class RemoteMedium:
    """An image or sound in an archive or, where that is allowed, on the network; read whenever it is asked for.

    Attributes:
        source: its URL.
    """

    source: str

    def data(self) -> bytes:
        """The file. Raises DataError if it cannot be had, or only with more bytes than ``MAX_BYTES``."""
        if self.source.lower().startswith(("http://", "https://")) and "::" not in self.source:
            return download(self.source, limit=MAX_BYTES, timeout_s=FETCH_S)
        from datasets.utils.file_utils import xopen

        try:
            with xopen(self.source, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except Exception as error:  # every file system has its own
            raise DataError(f"{self.source[:200]} cannot be read ({type(error).__name__}: {error})") from error
        if len(data) > MAX_BYTES:
            raise DataError(f"{self.source[:200]} cannot be read: it has more than {MAX_BYTES} bytes")
        return data


def require_fetch_allowed(source: str, where: str, *, allow_fetch: bool) -> None:
    """Refuses (DataError) what only the network has, unless it may be asked."""
    if is_fetched(source) and not allow_fetch:
        raise DataError(
            f"{where}: {source[:200]!r} would be fetched from the network, which data may not ask for; download it and "
            f"give its path, or set prompts.allow_fetch: true"
        )


def require_inside(path: str, where: str, roots: Sequence[Path] | None) -> None:
    """Refuses (DataError) a file, links followed, that lies in none of the folders; None: it may lie anywhere."""
    if roots is None:
        return
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(_real_path(root.absolute())) for root in roots):
        raise DataError(
            f"{where}: {path[:200]!r} lies outside of {' and '.join(map(str, roots))}, where data may not send the "
            "trainer; put it there, or set prompts.allow_outside: true if the data is yours"
        )


def require_reachable(value: Any, where: str, *, allow_fetch: bool, roots: Sequence[Path] | None) -> None:
    """Refuses (DataError) encoded media as datasets store them, however deep in a value, that lie elsewhere.

    Args:
        value: of a column.
        where: what to call it in an error.
        allow_fetch: whether they may lie on the network.
        roots: the folders that they may lie in; None: anywhere.
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
    """Where the hub's libraries keep what they have downloaded."""
    import datasets.config
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE), Path(datasets.config.HF_DATASETS_CACHE)


def archive_of(source: str) -> str:
    """The file of this machine that a path names, or a chain of fsspec (``zip://a.png::b.zip``) that ends in one.

    One that ends in an address (``local:///b.zip``) means different files to different libraries: the root, then.
    """
    last = source.rpartition("::")[2]
    return os.sep if "://" in last else last


@cache
def _real_path(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def stored_items(table: Any, row: int, column: str) -> Sequence[Any]:
    """The images or sounds of a row as arrow holds them, each with ``bytes`` and ``path``."""
    import pyarrow

    value = table[row].column(column)[0]
    if not value.is_valid:
        return ()
    return value.values if isinstance(value, pyarrow.ListScalar) else (value,)


def holds_media(feature: Any) -> bool:
    """Whether a column of a dataset holds encoded media that are decoded when they are looked at, however deep."""
    if isinstance(feature, dict):
        return set(feature) == {"bytes", "path"} or any(map(holds_media, feature.values()))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    is_json = getattr(feature, "_type", None) == "Json"  # decoded too, but no medium
    return (bool(getattr(feature, "decode", False)) and not is_json) or (inner is not None and holds_media(inner))


@final
class LazyMedia(Sequence[Any]):
    """Media of a kind of which some are encoded: those are decoded whenever they are looked at, and never kept."""

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

    def here(self) -> Iterator[Any]:
        """Those that this machine has, decoded."""
        return (_decode_item(item, self._kind) for item in self._items if not isinstance(item, RemoteMedium))

    def __reduce__(self) -> Any:
        """What travels between processes are the media of the row, not the dataset they lie in."""
        loaded = (bytes(item.data()) if isinstance(item, StoredMedium | RemoteMedium) else item for item in self._items)
        return LazyMedia, (tuple(loaded), self._kind)


def lazy_media(items: Sequence[Any], kind: str = "image") -> Sequence[Any]:
    """Media as a prompt holds them: paths and open ones as they are, encoded ones decoded when looked at."""
    encoded = any(isinstance(item, bytes | StoredMedium | RemoteMedium) for item in items)
    return LazyMedia(items, kind) if encoded else tuple(items)


@final
@dataclass(frozen=True, slots=True)
class RowLocation:
    """Where a row is.

    Attributes:
        where: what to call it in an error.
        folder: what its relative paths count from; None leaves them as they are.
        allow_fetch: whether its images may lie on the network.
        roots: the folders that its media may lie in; None: anywhere.
    """

    where: str
    folder: Path | None
    allow_fetch: bool = False
    roots: tuple[Path, ...] | None = None

    def media(self, row: Mapping[str, Any], kind: str) -> list[Medium]:
        """The media of a kind in their columns, in order."""
        column, list_column = COLUMNS[kind]
        items = _to_list(row.get(column), is_single=kind == "video") + _to_list(row.get(list_column))
        return [self.medium(item, kind) for item in items]

    def pictures(self, value: Any) -> Sequence[Any]:
        """The pictures of another column, one or a list, as a prompt holds them."""
        return lazy_media([self.medium(item, "image").item for item in _to_list(value)])

    def medium(self, item: Any, kind: str) -> Medium:
        """A medium as a prompt may hold it, checked as far as that takes no decoding.

        Raises: DataError for what does not exist or cannot be opened.
        """
        options: dict[str, Any] = {}
        if isinstance(item, Mapping):
            if kind == "audio" and item.get("array") is not None:
                return Medium(self._require_medium(self._load_sound(item), kind))
            keys = [key for key in PAYLOADS[kind] if item.get(key) is not None]
            if not keys:
                raise DataError(
                    f"{self.where}: a mapping stands for the {kind} and holds none of {', '.join(PAYLOADS[kind])}; it "
                    f"holds {', '.join(key for key, value in item.items() if value is not None) or 'nothing'}"
                )
            ignored = (*PAYLOADS[kind], "type", "detail", "format", "sampling_rate")
            options = {key: value for key, value in item.items() if key not in ignored and value is not None}
            inner = self.medium(item[keys[0]], kind)
            return Medium(inner.item, {**options, **inner.options})
        if kind == "video" and isinstance(item, list | tuple):
            return Medium(lazy_media([self.medium(frame, "image").item for frame in item]))
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
        """The item, if its first bytes are of such a medium; video files and what is elsewhere are not opened yet."""
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
    except UNREADABLE:  # some formats are read whole
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
    """Says that a path does not exist and what is nearest to it in its folder."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does its folder"
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.4)
    return f"{path} does not exist; " + (
        f"nearest there: {', '.join(near)}" if near else "nothing there has a like name"
    )
