"""Results of tools: the text and the media of the value that a function returns, within limits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
from PIL import Image

from mmgrpo.data.audio_loading import load_audio
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.media_options import FRAMES, SIZES, UNSUPPORTED
from mmgrpo.data.turn_media import MAX_MEDIA, MAX_PIXELS, video_bytes
from mmgrpo.data.videos import FILES, open_video
from mmgrpo.errors import ConfigError
from mmgrpo.samples import MEDIA, Audio, Turn, Video
from mmgrpo.tool_calls import bounded

_OPTIONS = {*SIZES, *FRAMES, *UNSUPPORTED}

FRAMES_PER_IMAGE = 4
"""The frames of a video may together have so many times the pixels of an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLimits:
    """Limits of a result; a note says which applied.

    Attributes:
        max_characters: maximum length of the text; the rest is cut off.
        max_pixels: maximum number of pixels of an image, and a fourth of that of all frames of a video; larger ones
            are reduced.
        max_frames: maximum number of frames of a video; of a longer list of frames so many are taken, evenly spaced.
        max_seconds: maximum duration of audio, whose rest is cut off, and of a video file, which is an error.

    Raises: ConfigError for a limit that is not positive.
    """

    max_characters: int
    max_pixels: int
    max_frames: int
    max_seconds: float

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ConfigError(f"{limit.name} must be positive, got {value}")


def read_result(value: Any, limits: ResultLimits) -> Turn:
    """The text and the media of the value that a tool returns.

    A value is a text or a JSON value, in which numbers and arrays of numpy and torch, dates, decimals and paths are
    allowed, with media: PIL images, ``mmgrpo.types.Video``, ``mmgrpo.types.Audio``, audio as datasets decode it
    (``{"array": .., "sampling_rate": ..}``), and content blocks ``{"type": "image", "image": ..}``, ``video`` and
    ``audio`` likewise. A block may hold any form that prompts have; the frames of a video may have a ``sample_fps``.
    Alone, or in a list of blocks, where texts are ``{"type": "text", "text": ..}``, a medium has no text; inside of
    another value its text is ``(image)``, ``(video)`` or ``(audio)``.

    Args:
        value: the value.
        limits: the limits.

    Returns:
        The text, with a note on each limit that applied, and the media.

    Raises:
        TypeError: a value that has no JSON form, or a block with other media options.
        ValueError: media beyond what can be reduced.
        DataError: a medium that cannot be opened.
    """
    media: dict[str, list[Any]] = {kind: [] for kind in MEDIA}
    text = bounded(_text_of(value, media), limits.max_characters)
    notes: list[str] = []
    reduced: dict[str, Any] = {}
    for kind, items in media.items():
        reduced[MEDIA[kind]] = [_REDUCED[kind](item, limits, notes) for item in items[:MAX_MEDIA]]
        if len(items) > MAX_MEDIA:
            notes.append(f"[{len(items) - MAX_MEDIA} {MEDIA[kind]} are left out]")
    return Turn(text="\n".join(part for part in (text, *notes) if part), **reduced)


def _text_of(value: Any, media: Mapping[str, list[Any]]) -> str:
    """The text of a value; its media are appended to ``media``."""
    parts = value if isinstance(value, list | tuple) else [value]
    if parts and all(map(_is_content, parts)):
        return "\n".join(filter(None, (_content_text(part, media) for part in parts)))
    plain = _without_media(value, media)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_plain)


def _is_content(part: Any) -> bool:
    """Whether a part is a content block, or a medium."""
    return _kind_of(part) is not None or (isinstance(part, Mapping) and part.get("type") == "text" and "text" in part)


def _content_text(part: Any, media: Mapping[str, list[Any]]) -> str:
    if (kind := _kind_of(part)) is None:
        return _text_of(part["text"], media)
    media[kind].append(_medium(kind, part))
    return ""


def _kind_of(value: Any) -> str | None:
    """The kind of a medium, or of the medium of a content block; None for another value."""
    if isinstance(value, Image.Image):
        return "image"
    if isinstance(value, Video):
        return "video"
    if isinstance(value, Audio) or (isinstance(value, Mapping) and {"array", "sampling_rate"} <= value.keys()):
        return "audio"
    kind = value.get("type") if isinstance(value, Mapping) else None
    return kind if isinstance(kind, str) and kind in MEDIA and value.get(kind) is not None else None


def _medium(kind: str, value: Any) -> Any:
    """A medium, or that of a content block."""
    if not isinstance(value, Mapping) or "type" not in value:
        return value
    is_frames = kind == "video" and not isinstance(value[kind], FILES)
    unused = [name for name in value if name in _OPTIONS and not (is_frames and name == "sample_fps")]
    if unused:
        raise TypeError(f"the options {', '.join(unused)} of the {kind} of a result are not supported: remove them")
    if is_frames and "sample_fps" in value:
        return Video(list(value[kind]), value["sample_fps"])
    if kind == "audio" and "sampling_rate" in value:
        return {"array": value[kind], "sampling_rate": value["sampling_rate"]}
    return value[kind]


def _without_media(value: Any, media: Mapping[str, list[Any]]) -> Any:
    """The value with the kind in place of each medium, which is appended to ``media``."""
    kind = _kind_of(value)
    if kind is not None and not (isinstance(value, Mapping) and isinstance(value.get(kind), str)):
        media[kind].append(_medium(kind, value))
        return f"({kind})"
    if isinstance(value, Mapping):
        return {key: _without_media(item, media) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_media(item, media) for item in value]
    return value


def _reduced_image(medium: Any, limits: ResultLimits, notes: list[str]) -> Image.Image:
    if isinstance(medium, Image.Image) and medium.width * medium.height > MAX_PIXELS:
        raise ValueError(f"the image of {medium.width} x {medium.height} pixels is too large")
    image = load_image(medium)
    return _within([image], limits.max_pixels, "image", notes)[0]


def _reduced_video(medium: Any, limits: ResultLimits, notes: list[str]) -> Any:
    if isinstance(medium, FILES):
        content = video_bytes(medium)
        file = open_video(content)
        if (duration_s := file.num_frames / file.fps) > limits.max_seconds:
            raise ValueError(f"the video of {duration_s:.1f} s is longer than {limits.max_seconds:g} s")
        return content
    if not len(medium):
        raise ValueError("the video has no frames")
    chosen = range(len(medium))
    if len(medium) > limits.max_frames:
        notes.append(f"[{limits.max_frames} of the {len(medium)} frames of the video are shown]")
        chosen = np.linspace(0, len(medium) - 1, limits.max_frames).round().astype(int).tolist()
    frames = [load_image(medium[index]) for index in chosen]
    if sum(frame.width * frame.height for frame in frames) > MAX_PIXELS * FRAMES_PER_IMAGE:
        raise ValueError(f"the video of {len(frames)} frames of {frames[0].size} pixels is too large")
    frames = _within(frames, FRAMES_PER_IMAGE * limits.max_pixels, "frames", notes)
    if not isinstance(medium, Video):
        return frames
    return Video(frames, medium.frame_rate * len(frames) / len(medium))


def _reduced_audio(medium: Any, limits: ResultLimits, notes: list[str]) -> Audio:
    audio = load_audio(medium)
    if audio.duration_s <= limits.max_seconds:
        return audio
    notes.append(f"[the audio of {audio.duration_s:.1f} s is cut off after {limits.max_seconds:g} s]")
    num_samples = max(int(limits.max_seconds * audio.sampling_rate), 1)
    return Audio(audio.values[:, :num_samples].contiguous(), audio.sampling_rate)


_REDUCED: Mapping[str, Callable[[Any, ResultLimits, list[str]], Any]] = {
    "image": _reduced_image,
    "video": _reduced_video,
    "audio": _reduced_audio,
}


def _within(images: Sequence[Image.Image], max_pixels: int, name: str, notes: list[str]) -> list[Image.Image]:
    """Images of at most ``max_pixels`` pixels together."""
    num_pixels = sum(image.width * image.height for image in images)
    if num_pixels <= max_pixels:
        return list(images)
    scale = math.sqrt(max_pixels / num_pixels)
    sizes = [(max(int(image.width * scale), 1), max(int(image.height * scale), 1)) for image in images]
    (width, height), verb = images[0].size, "is" if len(images) == 1 else "are"
    notes.append(f"[the {name} of {width} x {height} pixels {verb} reduced to {sizes[0][0]} x {sizes[0][1]}]")
    return [image.resize(size, reducing_gap=2.0) for image, size in zip(images, sizes, strict=True)]


def _plain(value: Any) -> Any:
    """A JSON form of a value that JSON cannot encode: numbers and arrays of numpy and torch, dates, decimals and
    paths.
    """
    if hasattr(value, "tolist"):  # numpy and torch
        return value.tolist()
    if isinstance(value, date | time_of_day | Decimal | UUID | PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a tool must return a text or a JSON value; this one returned {type(value).__name__}")
