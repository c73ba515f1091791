"""Pictures and videos that a pipeline is shown with its rows, and how the rows of one run bring them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from PIL import Image, ImageOps

from mmgrpo.data.media import opened, opened_column
from mmgrpo.data.media_options import options_of
from mmgrpo.data.videos import frames_of_video
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt


class MediaBatching(Enum):
    """How several rows of a run bring what they show; the first that a pipeline takes, and that keeps rows apart."""

    EACH = "a list with an entry a row"
    NESTED = "a list of lists"
    SHARED = "once for the rows of a prompt, which share a run"
    ALONE = "each row in a run of its own"

    @property
    def following(self) -> MediaBatching:
        """What is tried next; the last stays."""
        order = list(MediaBatching)
        return order[min(order.index(self) + 1, len(order) - 1)]


def batch_media(items: Sequence[Any], showing: MediaBatching) -> Any:
    """The argument that the items of several rows become; a row alone brings its own as it is."""
    if len(items) == 1 or showing in (MediaBatching.SHARED, MediaBatching.ALONE):
        return items[0]
    if showing is MediaBatching.NESTED:
        return [item if isinstance(item, list) else [item] for item in items]
    return list(items)


class MediaCache:
    """What prompts show, opened once as long as memory lasts; the least recently looked at goes first."""

    def __init__(self, max_bytes: int) -> None:
        """An empty album, of at most so many bytes of pixels."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[int, tuple[Prompt, Mapping[str, Any]]] = (
            OrderedDict()
        )  # the prompt keeps its id its own

    def shown(self, prompt: Prompt, opening: Callable[[Prompt], Mapping[str, Any]]) -> Mapping[str, Any]:
        """By argument, an open picture or a list of them, as ``opening`` finds them the first time."""
        key = id(prompt)
        if key not in self._kept:
            found = opening(prompt)
            self._kept[key] = (prompt, found)
            self._bytes += _num_bytes(found)
        self._kept.move_to_end(key)
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            self._bytes -= _num_bytes(self._kept.popitem(last=False)[1][1])
        return self._kept[key][1]


def load_media(prompt: Prompt, *, image: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """What a prompt shows, opened.

    Args:
        prompt: whose.
        image: the argument that its images go to; its videos go to ``video``.
        columns: by further arguments, the columns that hold their pictures.

    Returns:
        By argument one picture or a list of several; of a video its frames, of several a list each.

    Raises:
        DataError: media cannot be read, or have options beside them that are for vision-language models.
    """
    used = [name for kind in ("image", "video") for options in options_of(prompt, kind) for name in options]
    if used:
        raise DataError(
            f"the prompt {prompt.text!r:.60} has {', '.join(used)} beside its media, which pipelines have no use for: "
            "remove them, and set policy.call or policy.buckets for the size"
        )
    shown = {
        image: [opened(one) for one in prompt.images],
        "video": [frames_of_video(video) for video in prompt.videos],
    }
    shown |= {argument: opened_column(prompt.columns, name) for argument, name in columns.items()}
    return {name: items[0] if len(items) == 1 else items for name, items in shown.items() if items}


def media_sizes(item: Any) -> Any:
    """The sizes of an item's pictures, nested as they are."""
    return tuple(map(media_sizes, item)) if isinstance(item, list) else item.size


def num_images(item: Any) -> Any:
    """How many pictures an item has, nested as they are."""
    return tuple(map(num_images, item)) if isinstance(item, list) else 1


def is_prompt_column(name: str, value: Any) -> bool:
    """Whether a column is a further prompt (``prompt_2``), and not a label or a number."""
    return "prompt" in name and isinstance(value, str)


def contrasting_prompt(
    prompt: Prompt, pictures: Mapping[str, str], columns: Sequence[str] = (), *, times: int = 2
) -> Prompt:
    """A prompt that differs in all that it says and shows: repeated texts, and every picture's negative.

    Args:
        prompt: what it differs from.
        pictures: by argument, the columns that hold pictures.
        columns: that go to the call as arguments; those that are prompts are repeated.
        times: how often a text is repeated.

    Returns:
        A prompt with the same optional arguments.
    """
    texts = {name: prompt.columns[name] for name in columns if is_prompt_column(name, prompt.columns.get(name))}
    return replace(
        prompt,
        text=_repeated(prompt.text, times),
        negative=None if prompt.negative is None else _repeated(prompt.negative, times),
        images=[ImageOps.invert(opened(one)) for one in prompt.images],
        videos=[[ImageOps.invert(frame) for frame in frames_of_video(video)] for video in prompt.videos],
        columns={
            **prompt.columns,
            **{name: _repeated(text, times) for name, text in texts.items()},
            **{name: _negatives(prompt, name) for name in pictures.values()},
        },
    )


def _repeated(text: str, times: int) -> str:
    return " ".join([text.strip() or "a picture"] * (times if text.strip() else max(times - 1, 1)))


def _negatives(prompt: Prompt, column: str) -> list[Image.Image]:
    return [ImageOps.invert(picture) for picture in opened_column(prompt.columns, column)]


def _num_bytes(item: Any) -> int:
    if isinstance(item, Mapping):
        return sum(map(_num_bytes, item.values()))
    if isinstance(item, list):
        return sum(map(_num_bytes, item))
    return item.width * item.height * len(item.getbands())
