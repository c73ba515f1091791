"""Pictures and short videos as data URIs, reduced where they would make the page too large."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageSequence

from mmgrpo.report.choosing import evenly

SIDES = (512, 384, 256, 192, 128, 96, 64)
MIME = {"PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp", "JPEG": "image/jpeg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture or a short video as it travels in the page; ``exact`` if it is the file itself."""

    uri: str
    width: int
    height: int
    exact: bool


def load_picture(path: Path, share: int) -> Picture | None:
    """The file itself if it takes at most ``share`` bytes, else a smaller WebP; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            image.load()
            if path.stat().st_size <= share and image.format in MIME:
                return _carried(path.read_bytes(), MIME[image.format], image.size, exact=True)
            return _reduced(image, share)
    except (OSError, SyntaxError, ValueError):
        return None


def _reduced(image: Image.Image, share: int) -> Picture:
    frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    length_ms = sum(frame.info.get("duration", 100) for frame in frames)
    frames = evenly(frames, 16)
    fitting = [side for side in SIDES if side <= max(image.size) and side * side * len(frames) <= 12 * share]
    for side in (*fitting, SIDES[-1]):
        for frame in frames:
            frame.thumbnail((side, side))
        data = _webp(frames, length_ms / len(frames))
        if len(data) <= share:
            return _carried(data, MIME["WEBP"], frames[0].size, exact=False)
    return _carried(_webp(frames[:1], 0), MIME["WEBP"], frames[0].size, exact=False)


def _webp(frames: Sequence[Image.Image], frame_ms: float) -> bytes:
    buffer = io.BytesIO()
    moving = {"save_all": True, "append_images": frames[1:], "duration": round(frame_ms), "loop": 0}
    frames[0].save(buffer, "WEBP", quality=80, **(moving if len(frames) > 1 else {}))
    return buffer.getvalue()


def _carried(data: bytes, mime: str, size: tuple[int, int], *, exact: bool) -> Picture:
    uri = f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
    return Picture(uri=uri, width=size[0], height=size[1], exact=exact)
