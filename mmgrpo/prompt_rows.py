"""One row of data as a prompt: which column is what, and where the pictures are."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, final

from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt

_MEDIA = ("image", "images", "video", "videos")


def holds_images(feature: Any) -> bool:
    from datasets import Image as ImageFeature

    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", feature)
    return isinstance(inner, ImageFeature)


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredImages(Sequence[Image.Image]):
    """The images of one row of a dataset, decoded whenever they are looked at and never kept."""

    dataset: Any
    row: int
    column: str

    def _decoded(self) -> list[Image.Image]:
        value = self.dataset.select_columns([self.column])[self.row][self.column]
        return [] if value is None else value if isinstance(value, list) else [value]

    def __len__(self) -> int:
        return len(self._decoded())

    def __getitem__(self, index: Any) -> Any:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Image.Image]:
        return iter(self._decoded())


def prompt_of_row(row: Any, text_column: str, *, where: str, folder: Path | None) -> Prompt:
    """The prompt that a row of data stands for; what is no prompt, negative prompt, image or video is a column.

    Args:
        row: the row, a mapping of columns.
        text_column: the column that holds the text or the chat messages.
        where: what to call the row in an error.
        folder: what relative paths of images and videos count from; None leaves them as they are.

    Returns:
        The prompt.

    Raises:
        DataError: for a row without a prompt, malformed chat messages, or a path that does not exist.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where} must be an object with a '{text_column}', got {type(row).__name__}")
    asked = row.get(text_column)
    if not asked or not isinstance(asked, str | list):
        raise DataError(
            f"{where} has no prompt: '{text_column}' must be a text or a list of chat messages, got {asked!r:.60}; its "
            f"columns are {', '.join(map(str, row))}; text_column names the one that holds the prompt"
        )
    return Prompt(
        asked if isinstance(asked, str) else _last_user_text(asked, where),
        images=_pictures(row, where, folder),
        videos=tuple(_medium(video, where, folder) for video in [*_listed(row, "video"), *(row.get("videos") or ())]),
        messages=None if isinstance(asked, str) else asked,
        negative=row.get("negative_prompt"),
        columns={name: value for name, value in row.items() if name not in (text_column, "negative_prompt", *_MEDIA)},
    )


def _pictures(row: Mapping[str, Any], where: str, folder: Path | None) -> Sequence[Any]:
    for name in ("image", "images"):
        if isinstance(row.get(name), StoredImages):
            return row[name]
    return tuple(_medium(item, where, folder) for item in [*_listed(row, "image"), *(row.get("images") or ())])


def _listed(row: Mapping[str, Any], name: str) -> list[Any]:
    return [] if row.get(name) is None else [row[name]]


def _medium(item: Any, where: str, folder: Path | None) -> Any:
    """An image or a video as it may be handed to a policy: paths counted from the folder, stored bytes opened."""
    if isinstance(item, list | tuple):  # a video as a list of frames
        return tuple(_medium(frame, where, folder) for frame in item)
    if isinstance(item, Mapping) and item.get("bytes") is not None:
        return Image.open(BytesIO(item["bytes"]))
    if isinstance(item, Mapping) and item.get("path") is not None:
        item = item["path"]
    if not isinstance(item, str) or folder is None or "://" in item or item.startswith("data:"):
        return item
    path = folder / item
    if not path.exists():
        raise DataError(f"{where}: {missing(path)}; paths count from {folder}")
    return str(path)


def _last_user_text(messages: list[Any], where: str) -> str:
    for message in reversed(messages):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise DataError(f"{where}: a chat message needs 'role' and 'content', got {message!r:.80}")
    for message in reversed(messages):
        content = message["content"]
        parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
        text = "\n".join(part for part in parts if part)
        if message["role"] == "user" and text:
            return text
    raise DataError(f"{where}: the chat messages hold no user turn with text; one is needed as the prompt's text")


def missing(path: Path) -> str:
    """Says that a path does not exist and what is nearest to it in its folder."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does its folder"
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.4)
    return f"{path} does not exist; " + (
        f"nearest there: {', '.join(near)}" if near else "nothing there has a like name"
    )
