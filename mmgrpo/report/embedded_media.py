"""Images, videos and audio as data URIs, reduced where the page would become too large."""

from __future__ import annotations

import base64
import io
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, ImageSequence

from mmgrpo.data.clips import decoded, encoded, filmstrip
from mmgrpo.data.image_loading import UNREADABLE
from mmgrpo.errors import DataError
from mmgrpo.report.embedded_audio import IMAGE_QUALITY, played
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.sample_selection import evenly

SIDES = (512, 384, 256, 192, 128, 96, 64)
MAX_PIXELS = 2**26
"""Pixels of an image, or of all frames of a video."""
MAX_FRAMES = 16
MAX_CLIP_FRAMES = 128
STRIP_FRAMES = 8
CLIP_QUALITY = 28  # of H.264, as mmgrpo.data.clips has it
STRIP_HEIGHTS = (96, 64, 48, 32)  # px
STRIP_SHARE = 4
"""The film strip of a video takes 1 / STRIP_SHARE of its bytes."""
MIME = {"PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp", "JPEG": "image/jpeg"}
MP4 = "video/mp4"
UNREADABLE_MEDIA = (
    *UNREADABLE,
    DataError,
    EOFError,
    struct.error,
    KeyError,
    IndexError,
    ZeroDivisionError,
    MemoryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedImage:
    """An image, a video or a spectrogram embedded in the page; ``exact`` if it is the original file.

    Attributes:
        frames: data URI of the film strip of a video; empty if it is too large, None if this is no video.
        sound: data URI of the audio, if there is any.
    """

    uri: str
    width: int
    height: int
    exact: bool
    frames: str | None = None
    sound: str | None = None


def embed_image(files: RunFiles, path: Path, share: int) -> EmbeddedImage | None:
    """The file if it has at most ``share`` bytes, else a smaller WebP or MP4; None if it cannot be read.

    Files outside of the run folder, of other formats, or with too many pixels are not read.
    """
    data = files.bytes_of(path)
    if data is None:
        return None
    if path.suffix == ".wav":
        return _audio_image(data, share)
    try:
        if data[4:8] == b"ftyp":
            return _clip(data, share)
        quiet = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
        with quiet, Image.open(io.BytesIO(data), formats=list(MIME)) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.load()
            if len(data) <= share:
                return _carried(data, MIME[image.format or ""], image.size, exact=True)
            return _reduced(image, share)
    except UNREADABLE_MEDIA:
        return None


def load_frames(files: RunFiles, path: Path, most: int) -> list[Image.Image]:
    """At most ``most`` frames of a video, evenly spaced, or one image, as RGB; empty if the file cannot be read."""
    data = files.bytes_of(path)
    if data is None:
        return []
    try:
        if data[4:8] == b"ftyp":
            return [frame.convert("RGB") for frame in evenly(decoded(data, max_pixels=MAX_PIXELS)[0], most)]
        quiet = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
        with quiet, Image.open(io.BytesIO(data), formats=list(MIME)) as image:
            return [] if image.width * image.height > MAX_PIXELS else evenly(_frames(image)[0], most)
    except UNREADABLE_MEDIA:
        return []


def with_sound(image: EmbeddedImage | None, files: RunFiles, path: Path, share: int) -> EmbeddedImage | None:
    """A video with the audio of a separate file; the spectrogram of the audio if there is no video."""
    sound = embed_image(files, path, share)
    return sound if image is None or sound is None else replace(image, sound=sound.sound)


def _audio_image(data: bytes, share: int) -> EmbeddedImage | None:
    player = played(data, share)
    if player is None:
        return None
    uri, image, exact = player
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=IMAGE_QUALITY)
    return replace(_carried(buffer.getvalue(), MIME["WEBP"], image.size, exact=exact), sound=uri)


def _clip(data: bytes, share: int) -> EmbeddedImage:
    """An MP4 file, or a smaller one, with a film strip."""
    frames, frame_rate = decoded(data, max_pixels=MAX_PIXELS)
    size = frames[0].size
    strips = (_webp([filmstrip(frames, most=STRIP_FRAMES, height=height)], 0) for height in STRIP_HEIGHTS)
    strip = next((strip for strip in strips if len(strip) <= share // STRIP_SHARE), None)
    sheet = f"data:{MIME['WEBP']};base64,{_base64(strip)}" if strip is not None else ""
    left = share - share // STRIP_SHARE
    if len(data) <= left:
        return _carried(data, MP4, size, exact=True, frames=sheet)
    sampled = evenly(frames, MAX_CLIP_FRAMES)
    rate = frame_rate * len(sampled) / len(frames)
    smaller, size = _fitting(sampled, left, lambda some: encoded(some, rate, side=2, quality=CLIP_QUALITY))
    return _carried(smaller, MP4, size, exact=False, frames=sheet)


def _reduced(image: Image.Image, share: int) -> EmbeddedImage:
    frames, length_ms = _frames(image)
    data, size = _fitting(frames, share, lambda some: _webp(some, length_ms / len(frames)))
    return _carried(data, MIME["WEBP"], size, exact=False)


def _fitting(
    frames: Sequence[Image.Image], share: int, encode: Callable[[Sequence[Image.Image]], bytes]
) -> tuple[bytes, tuple[int, int]]:
    """The largest encoding of all frames within ``share`` bytes, and its size; of the first frame if none fits."""
    most = max(frames[0].size)
    fitting = [side for side in SIDES if side <= most and side * side * len(frames) <= 12 * share]
    for side in (*fitting, SIDES[-1]):
        for frame in frames:
            frame.thumbnail((side, side))
        data = encode(frames)
        if len(data) <= share:
            return data, frames[0].size
    return encode(frames[:1]), frames[0].size


def _frames(image: Image.Image) -> tuple[list[Image.Image], float]:
    """A few frames, evenly spaced, and the total duration in milliseconds."""
    most = max(1, MAX_PIXELS // (image.width * image.height))
    frames, length_ms = [], 0.0
    for number, frame in enumerate(ImageSequence.Iterator(image)):
        if number == most:
            break
        frames.append(frame.convert("RGB"))
        length_ms += min(frame.info.get("duration", 100), 10_000)
    return evenly(frames, MAX_FRAMES), length_ms


def _webp(frames: Sequence[Image.Image], frame_ms: float) -> bytes:
    buffer = io.BytesIO()
    moving = {"save_all": True, "append_images": frames[1:], "duration": round(frame_ms), "loop": 0}
    frames[0].save(buffer, "WEBP", quality=80, **(moving if len(frames) > 1 else {}))
    return buffer.getvalue()


def _carried(data: bytes, mime: str, size: tuple[int, int], *, exact: bool, frames: str | None = None) -> EmbeddedImage:
    uri = f"data:{mime};base64,{_base64(data)}"
    return EmbeddedImage(uri=uri, width=size[0], height=size[1], exact=exact, frames=frames)


def data_uri(data: bytes, form: str) -> str:
    """The data URI of an image file in one of the formats of ``MIME``."""
    return f"data:{MIME[form]};base64,{_base64(data)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
