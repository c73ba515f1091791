"""Images and videos that condition a pipeline, and how those of several rows are batched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from PIL import Image, ImageOps

from mmgrpo.data.image_loading import load_image, load_image_column
from mmgrpo.data.media_options import options_of
from mmgrpo.data.videos import frames_of_video
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt


class MediaBatching(Enum):
    """How the media of several rows of a run are passed; the first that the pipeline accepts with independent rows."""

    EACH = "a list with one entry per row"
    NESTED = "a list of lists"
    SHARED = "one entry for the rows of a prompt, which share a run"
    ALONE = "one row per run"

    @property
    def following(self) -> MediaBatching:
        """The next one to try; the last stays."""
        order = list(MediaBatching)
        return order[min(order.index(self) + 1, len(order) - 1)]


def batch_media(items: Sequence[Any], media_batching: MediaBatching) -> Any:
    """The argument for the media of several rows; for a single row, its own media unchanged."""
    if len(items) == 1 or media_batching in (MediaBatching.SHARED, MediaBatching.ALONE):
        return items[0]
    if media_batching is MediaBatching.NESTED:
        return [item if isinstance(item, list) else [item] for item in items]
    return list(items)


class MediaCache:
    """The opened media of prompts, least recently used evicted first."""

    def __init__(self, max_bytes: int) -> None:
        """An empty cache for at most ``max_bytes`` of pixels."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._media: OrderedDict[int, tuple[Prompt, Mapping[str, Any]]] = (
            OrderedDict()
        )  # keeps prompts: ids stay unique

    def media(self, prompt: Prompt, load: Callable[[Prompt], Mapping[str, Any]]) -> Mapping[str, Any]:
        """By argument, an open image or a list of images; ``load`` opens them on the first call."""
        key = id(prompt)
        if key not in self._media:
            media = load(prompt)
            self._media[key] = (prompt, media)
            self._bytes += _num_bytes(media)
        self._media.move_to_end(key)
        while self._bytes > self._max_bytes and len(self._media) > 1:
            self._bytes -= _num_bytes(self._media.popitem(last=False)[1][1])
        return self._media[key][1]


def load_media(prompt: Prompt, *, image: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """The opened media of a prompt.

    Args:
        prompt: the prompt.
        image: the argument of its images; that of its videos is ``video``.
        columns: further arguments, with the columns that hold their images.

    Returns:
        By argument, one image or a list of several; of a video its frames, of several videos a list each.

    Raises:
        DataError: media cannot be read, or have options, which only vision-language models support.
    """
    unsupported = [name for kind in ("image", "video") for options in options_of(prompt, kind) for name in options]
    if unsupported:
        raise DataError(
            f"the media of the prompt {prompt.text!r:.60} have options that diffusion pipelines do not support: "
            f"{', '.join(unsupported)}. Remove them; policy.call or policy.buckets set the size"
        )
    media = {
        image: [load_image(image) for image in prompt.images],
        "video": [frames_of_video(video) for video in prompt.videos],
    }
    media |= {argument: load_image_column(prompt.columns, name) for argument, name in columns.items()}
    return {name: items[0] if len(items) == 1 else items for name, items in media.items() if items}


def media_sizes(item: Any) -> Any:
    """The sizes of an item's images, nested like the item."""
    return tuple(map(media_sizes, item)) if isinstance(item, list) else item.size


def num_images(item: Any) -> Any:
    """The number of images of an item, nested like the item."""
    return tuple(map(num_images, item)) if isinstance(item, list) else 1


def is_prompt_column(name: str, value: Any) -> bool:
    """Whether a column is a further prompt (``prompt_2``), and not a label or a number."""
    return "prompt" in name and isinstance(value, str)


def contrasting_prompt(
    prompt: Prompt, image_arguments: Mapping[str, str], columns: Sequence[str] = (), *, times: int = 2
) -> Prompt:
    """A prompt with other texts and media: repeated texts, and inverted images.

    Args:
        prompt: the original.
        image_arguments: names of arguments, with the columns that hold their images.
        columns: columns that are arguments of the call; those that are prompts are repeated.
        times: repetitions of a text.

    Returns:
        A prompt with the same optional arguments.
    """
    texts = {name: prompt.columns[name] for name in columns if is_prompt_column(name, prompt.columns.get(name))}
    return replace(
        prompt,
        text=_repeated(prompt.text, times),
        negative=None if prompt.negative is None else _repeated(prompt.negative, times),
        images=[ImageOps.invert(load_image(image)) for image in prompt.images],
        videos=[[ImageOps.invert(frame) for frame in frames_of_video(video)] for video in prompt.videos],
        columns={
            **prompt.columns,
            **{name: _repeated(text, times) for name, text in texts.items()},
            **{name: _negatives(prompt, name) for name in image_arguments.values()},
        },
    )


def _repeated(text: str, times: int) -> str:
    return " ".join([text.strip() or "a picture"] * (times if text.strip() else max(times - 1, 1)))


def _negatives(prompt: Prompt, column: str) -> list[Image.Image]:
    return [ImageOps.invert(picture) for picture in load_image_column(prompt.columns, column)]


def _num_bytes(item: Any) -> int:
    if isinstance(item, Mapping):
        return sum(map(_num_bytes, item.values()))
    if isinstance(item, list):
        return sum(map(_num_bytes, item))
    return item.width * item.height * len(item.getbands())
