"""The images and videos of a row of data: found, checked, and opened only when they are looked at."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, final

from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.media import UNREADABLE, embedded, is_url, path_of, unreadable, upright

COLUMNS = {"image": ("image", "images"), "video": ("video", "videos")}
"""The columns that hold each kind of medium: one, and a list."""

PAYLOADS = {
    "image": ("image", "image_url", "bytes", "path", "url", "base64"),
    "video": ("video", "video_url", "path", "url", "bytes"),
}
"""The keys under which a mapping holds a medium."""

HEAD_BYTES = 2**16
"""How much of a stored image is looked at when it is loaded: enough for most to say what they are."""


@final
@dataclass(frozen=True, slots=True)
class Medium:
    """An image or a video, and the options that stood beside it (``fps``, ``max_pixels``)."""

    item: Any
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredImage:
    """The bytes of one image of a dataset, read whenever they are asked for.

    Attributes:
        table: the dataset in arrow's format.
        row: its row.
        column: the column of images.
        index: which of the row's images.
    """

    table: Any
    row: int
    column: str
    index: int

    @property
    def path(self) -> str | None:
        """Where the image lies, if it is an ordinary file and not in the dataset itself."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        path = item["path"].as_py() if item.is_valid and not item["bytes"].is_valid else None
        return None if path is None or is_url(path) else path

    @property
    def is_here(self) -> bool:
        """Whether the dataset holds the image itself."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        return item.is_valid and item["bytes"].is_valid

    def data(self) -> Any:
        """The encoded image, as a buffer; not copied if the dataset holds it."""
        item = stored_items(self.table, self.row, self.column)[self.index]
        if self.is_here:
            return item["bytes"].as_buffer()
        from datasets.utils.file_utils import xopen

        with xopen(item["path"].as_py(), "rb") as file:
            return file.read()


def stored_items(table: Any, row: int, column: str) -> Sequence[Any]:
    """The images of a row as arrow holds them, each with ``bytes`` and ``path``."""
    import pyarrow

    value = table[row].column(column)[0]
    if not value.is_valid:
        return ()
    return value.values if isinstance(value, pyarrow.ListScalar) else (value,)


def holds_media(feature: Any) -> bool:
    """Whether a column of a dataset holds encoded images or videos, however deep."""
    from datasets import Image as ImageFeature
    from datasets import Video as VideoFeature

    if isinstance(feature, dict):
        return set(feature) == {"bytes", "path"} or any(map(holds_media, feature.values()))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    return isinstance(feature, ImageFeature | VideoFeature) or (inner is not None and holds_media(inner))


@final
class Pictures(Sequence[Any]):
    """Images of which some are encoded: those are decoded whenever they are looked at, and never kept."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return Pictures(self._items[index]) if isinstance(index, slice) else _decoded(self._items[index])

    def __iter__(self) -> Iterator[Any]:
        return map(_decoded, self._items)

    def __reduce__(self) -> Any:
        """What travels between processes are the images of the row, not the dataset they lie in."""
        return Pictures, (tuple(bytes(item.data()) if isinstance(item, StoredImage) else item for item in self._items),)


def held(items: Sequence[Any]) -> Sequence[Any]:
    """Media as a prompt holds them: paths and open images as they are, encoded images decoded when looked at."""
    return Pictures(items) if any(isinstance(item, bytes | StoredImage) for item in items) else tuple(items)


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is.

    Attributes:
        where: what to call it in an error.
        folder: what its relative paths count from; None leaves them as they are.
    """

    where: str
    folder: Path | None

    def media(self, row: Mapping[str, Any], kind: str) -> list[Medium]:
        """The media of a kind in their columns, in order."""
        one, several = COLUMNS[kind]
        given = _listed(row.get(one), whole=kind == "video") + _listed(row.get(several))
        return [self.medium(item, kind) for item in given]

    def medium(self, item: Any, kind: str) -> Medium:
        """A medium as a prompt may hold it, checked as far as that takes no decoding.

        Raises: DataError for what does not exist or cannot be opened.
        """
        options: dict[str, Any] = {}
        if isinstance(item, Mapping):
            keys = [key for key in PAYLOADS[kind] if item.get(key) is not None]
            if not keys:
                raise DataError(
                    f"{self.where}: a mapping stands for the {kind} and holds none of {', '.join(PAYLOADS[kind])}; it "
                    f"holds {', '.join(key for key, value in item.items() if value is not None) or 'nothing'}"
                )
            ignored = (*PAYLOADS[kind], "type", "detail")
            options = {key: value for key, value in item.items() if key not in ignored and value is not None}
            return Medium(self.medium(item[keys[0]], kind).item, options)
        if kind == "video" and isinstance(item, list | tuple):
            return Medium(held([self.medium(frame, "image").item for frame in item]))
        return Medium(self._checked(self._located(item, kind), kind))

    def _located(self, item: Any, kind: str) -> Any:
        if not isinstance(item, str):
            return item
        path = path_of(item)
        placed = path if self.folder is None else str(self.folder / path)
        if os.path.exists(placed):
            return placed
        try:
            data = embedded(item) if kind == "image" else None
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error
        if data is not None:
            return data
        if is_url(item) or self.folder is None:
            return item
        raise DataError(f"{self.where}: {missing(Path(placed))}; paths count from {self.folder}")

    def _checked(self, item: Any, kind: str) -> Any:
        """The item, if it looks like an image from its first bytes; videos and what is elsewhere are not looked at."""
        if isinstance(item, Image.Image) or (isinstance(item, str) and (kind == "video" or not os.path.exists(item))):
            return item
        if kind == "video" or not isinstance(item, str | bytes | StoredImage):
            raise DataError(
                f"{self.where}: the {kind} must be a path{'' if kind == 'image' else ' or a list of frames'}, got "
                f"{type(item).__name__}; write it to a file and give its path"
            )
        if isinstance(item, StoredImage) and not item.is_here:
            return item
        try:
            _identify(item)
        except UNREADABLE as error:
            raise DataError(f"{self.where}: {unreadable(item, error)}") from error
        return item


def _identify(item: str | bytes | StoredImage) -> None:
    if isinstance(item, str):
        Image.open(item).close()
        return
    data = memoryview(item if isinstance(item, bytes) else item.data())
    try:
        Image.open(BytesIO(data[:HEAD_BYTES])).close()
    except UNREADABLE:  # some formats are read whole
        Image.open(BytesIO(data)).close()


def _decoded(item: Any) -> Any:
    if not isinstance(item, bytes | StoredImage):
        return item
    try:
        return upright(Image.open(BytesIO(item if isinstance(item, bytes) else item.data())))
    except UNREADABLE as error:
        raise DataError(unreadable(item, error)) from error


def _listed(value: Any, *, whole: bool = False) -> list[Any]:
    """A column's media; a list is one medium where it stands for a ``whole`` video."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) and not whole else [value]


def missing(path: Path) -> str:
    """Says that a path does not exist and what is nearest to it in its folder."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does its folder"
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.4)
    return f"{path} does not exist; " + (
        f"nearest there: {', '.join(near)}" if near else "nothing there has a like name"
    )
