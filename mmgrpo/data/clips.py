"""Encodes and decodes videos as MP4 files for browsers, and as filmstrips of their frames."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from math import ceil

import numpy as np
from PIL import Image

from mmgrpo.errors import DataError

FRAME_RATE = 8.0
"""Default frames per second."""
CRISP_SIDE = 256
"""Smaller frames are enlarged by pixel repetition, since H.264 stores colors at half the resolution."""
QUALITY = 16
"""H.264's constant rate factor: 0 is lossless, 18 to the eye, 51 the worst."""
RATE_DENOMINATOR = 1001


def encoded(
    frames: Sequence[Image.Image], frame_rate: float | None = None, *, side: int = CRISP_SIDE, quality: int = QUALITY
) -> bytes:
    """Frames as an MP4 file: H.264, 4:2:0.

    Args:
        frames: frames of equal size; odd sizes are padded by repeating the last row or column of pixels.
        frame_rate: frames per second; None: ``FRAME_RATE``.
        side: minimal pixels of the larger side of a frame; smaller frames are enlarged by an integer factor.
        quality: see ``QUALITY``.

    Returns:
        The bytes of the file.

    Raises:
        DataError: there are no frames, or they differ in size.
    """
    import av

    if not frames or len({frame.size for frame in frames}) > 1:
        raise DataError(f"a video needs frames of one size, got {sorted({frame.size for frame in frames})}")
    factor = max(1, ceil(side / max(frames[0].size)))
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as file:
        rate = Fraction(frame_rate or FRAME_RATE).limit_denominator(RATE_DENOMINATOR)
        stream = file.add_stream("libx264", rate=rate, options={"crf": str(quality), "threads": "1"})
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            pixels = np.asarray(frame.convert("RGB")).repeat(factor, 0).repeat(factor, 1)
            pixels = np.pad(pixels, ((0, pixels.shape[0] % 2), (0, pixels.shape[1] % 2), (0, 0)), mode="edge")
            if number == 0:
                stream.height, stream.width = pixels.shape[:2]
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        file.mux(stream.encode())
    return buffer.getvalue()


def decoded(data: bytes, *, max_pixels: int) -> tuple[list[Image.Image], float]:
    """The first frames of an MP4 file, with at most ``max_pixels`` pixels together, and its frames per second.

    Raises: DataError for a file that is no MP4, has no frames, or has a frame of more than ``max_pixels`` pixels.
    """
    import av
    from av.error import FFmpegError

    try:
        with av.open(BytesIO(data), "r", format="mov,mp4,m4a,3gp,3g2,mj2") as file:
            stream = file.streams.video[0]
            if stream.codec_context is None:
                raise DataError("the video is of no known codec")
            size = stream.width * stream.height
            if not 0 < size <= max_pixels:
                raise DataError(f"a frame of {stream.width} x {stream.height} pixels is too large")
            frames = []
            for frame in file.decode(stream):
                if frame.width * frame.height > max_pixels:
                    raise DataError("a frame of the video is too large")
                frames.append(frame.to_image())
                if (len(frames) + 1) * size > max_pixels:
                    break
            if not frames:
                raise DataError("the video has no frames")
            return frames, float(stream.average_rate or FRAME_RATE)
    except (FFmpegError, IndexError, ValueError, MemoryError) as error:
        raise DataError(f"the video cannot be read ({type(error).__name__}: {error})") from error


def filmstrip(frames: Sequence[Image.Image], *, most: int, height: int, gap: int = 2) -> Image.Image:
    """At most ``most`` frames side by side, evenly spaced from the first to the last, each ``height`` pixels high."""
    frames = [frames[index] for index in np.linspace(0, len(frames) - 1, min(len(frames), most)).round().astype(int)]
    factor = height / frames[0].height
    width = max(1, round(frames[0].width * factor))
    sampling = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.LANCZOS
    strip = Image.new("RGB", (len(frames) * (width + gap) - gap, height), "white")
    for number, frame in enumerate(frames):
        strip.paste(frame.convert("RGB").resize((width, height), sampling), (number * (width + gap), 0))
    return strip
