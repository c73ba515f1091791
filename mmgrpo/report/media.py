"""Pictures and short videos as data URIs, reduced where they would make the page too large."""

from __future__ import annotations

import base64
import io
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageSequence

from mmgrpo.data.media import UNREADABLE
from mmgrpo.report.choosing import evenly
from mmgrpo.report.run_files import RunFiles

SIDES = (512, 384, 256, 192, 128, 96, 64)
MAX_PIXELS = 2**26
"""Of a picture, and of all the frames of a video together."""
MIME = {"PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp", "JPEG": "image/jpeg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture or a short video as it travels in the page; ``exact`` if it is the file itself."""

    uri: str
    width: int
    height: int
    exact: bool


def load_picture(files: RunFiles, path: Path, share: int) -> Picture | None:
    """The file itself if it takes at most ``share`` bytes, else a smaller WebP; None if it cannot be read.

    So are a file outside of the run folder, one of another kind than runs have, and one that unpacks to too much.
    """
    data = files.bytes_of(path)
    if data is None:
        return None
    try:
        quiet = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
        with quiet, Image.open(io.BytesIO(data), formats=list(MIME)) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.load()
            if len(data) <= share:
                return _carried(data, MIME[image.format or ""], image.size, exact=True)
            return _reduced(image, share)
    except (*UNREADABLE, EOFError, struct.error, KeyError, IndexError, ZeroDivisionError, MemoryError):
        return None


def _reduced(image: Image.Image, share: int) -> Picture:
    frames, length_ms = _frames(image)
    fitting = [side for side in SIDES if side <= max(image.size) and side * side * len(frames) <= 12 * share]
    for side in (*fitting, SIDES[-1]):
        for frame in frames:
            frame.thumbnail((side, side))
        data = _webp(frames, length_ms / len(frames))
        if len(data) <= share:
            return _carried(data, MIME["WEBP"], frames[0].size, exact=False)
    return _carried(_webp(frames[:1], 0), MIME["WEBP"], frames[0].size, exact=False)


def _frames(image: Image.Image) -> tuple[list[Image.Image], float]:
    """A few of the frames, evenly spaced, and milliseconds for all of them."""
    most = max(1, MAX_PIXELS // (image.width * image.height))
    frames, length_ms = [], 0.0
    for number, frame in enumerate(ImageSequence.Iterator(image)):
        if number == most:
            break
        frames.append(frame.convert("RGB"))
        length_ms += min(frame.info.get("duration", 100), 10_000)
    return evenly(frames, 16), length_ms


def _webp(frames: Sequence[Image.Image], frame_ms: float) -> bytes:
    buffer = io.BytesIO()
    moving = {"save_all": True, "append_images": frames[1:], "duration": round(frame_ms), "loop": 0}
    frames[0].save(buffer, "WEBP", quality=80, **(moving if len(frames) > 1 else {}))
    return buffer.getvalue()


def _carried(data: bytes, mime: str, size: tuple[int, int], *, exact: bool) -> Picture:
    uri = f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
    return Picture(uri=uri, width=size[0], height=size[1], exact=exact)
