"""Reads video files with PyAV: the timestamps of all frames, and the frames at selected times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, final

import numpy as np
from PIL import Image

from mmgrpo.data.image_loading import load_image, require_local_file, require_pixels
from mmgrpo.data.image_modes import in_rgb
from mmgrpo.errors import DataError
from mmgrpo.samples import Video

FORMATS = ("mov", "matroska", "webm", "avi", "gif", "mpegts", "mpeg", "flv", "asf", "ogg", "mpegvideo", "m4v")
"""Supported formats, by ffmpeg's names: containers that include their frames and reference no other file."""
FILES = (str, Path, bytes)
"""Types of a video that is a file; another one is a list of frames."""
MAX_PIXELS = 2**29
"""Maximal pixels of all frames of a video, if every frame is read: 10 seconds of 1080p at 25 frames per second."""
SLACK = 0.25
"""Share of a frame's duration by which container formats may round its timestamp."""
TICK_S = 1e-6
"""Tolerance in seconds for equal times after arithmetic."""
AV_TIME_BASE = 1_000_000
MIN_COMPLETE = 0.9
"""Minimal share of the frames, or of the duration, in a file's header; a file with less is truncated."""


@final
@dataclass(frozen=True, slots=True)
class VideoFile:
    """A video that can be read.

    Attributes:
        source: the path of the file, or its bytes.
        times_F: timestamp of each frame in seconds after the first one, ascending.
        fps: frames per second; the mean for a variable rate.
        size: (width, height) of an upright frame.
        slack_s: seconds by which the file may round the time of a frame.
    """

    source: str | bytes
    times_F: Sequence[float]
    fps: float
    size: tuple[int, int]
    slack_s: float = 0.0

    @property
    def num_frames(self) -> int:
        """Number of frames, F."""
        return len(self.times_F)

    def frames_at(self, times: Sequence[float]) -> Iterator[Image.Image]:
        """Yields the upright RGB frames visible at these times, in seconds, ascending.

        Raises: DataError for a frame that cannot be decoded.
        """
        latest = [max(0, bisect_right(self.times_F, time + self.slack_s + TICK_S) - 1) for time in times]
        frame_times = [self.times_F[index] for index in latest]
        with _open_stream(self.source) as (container, stream):
            yield from _frames_at(container, stream, frame_times)

    def frames(self) -> list[Image.Image]:
        """Every frame. Raises DataError for more than ``MAX_PIXELS`` pixels together."""
        num_pixels = self.num_frames * self.size[0] * self.size[1]
        if num_pixels > MAX_PIXELS:
            raise DataError(
                f"{_name(self.source)} has {self.num_frames} frames of {self.size[0]} x {self.size[1]} pixels, more "
                f"than {MAX_PIXELS} together; shorten the video or make it smaller"
            )
        return list(self.frames_at(self.times_F))


def open_video(source: str | Path | bytes) -> VideoFile:
    """A video file: MP4, MOV, WebM, Matroska, AVI, GIF and other containers of ``FORMATS``.

    Args:
        source: a path (``file://`` too), or the bytes of a file.

    Returns:
        The video with the timestamps of its frames; only the first frame is decoded.

    Raises:
        DataError: it does not exist, has no video, is cut off, cannot be decoded, or its frames are too large.
    """
    path = source if isinstance(source, bytes) else require_local_file(str(source))
    with _open_stream(path) as (container, stream):
        rate, num_named = float(stream.average_rate or 0), stream.frames
        length = (container.duration or 0) / AV_TIME_BASE if len(container.streams) == 1 else 0.0
        spans = [_Span.of(packet) for packet in container.demux(stream) if packet.size]
    if len(spans) < MIN_COMPLETE * num_named:
        raise DataError(_unreadable_message(path, f"it is cut off: {len(spans)} of {num_named} frames are there"))
    if any(span.start is None for span in spans):
        spans = _decode_spans(path, rate)
    span_at = {span.start: span for span in spans if span.start is not None and not span.is_discarded}
    if not span_at:
        raise DataError(_unreadable_message(path, "it has no frames"))
    first, *_, last = sorted(span_at) * 2
    if last - first + (span_at[last].duration or 1 / (rate or 1)) < MIN_COMPLETE * length:
        raise DataError(_unreadable_message(path, f"it is cut off: {last - first:.2f} of {length:.2f} s are there"))
    times_F = [time - first for time in sorted(span_at)]
    is_constant = rate > 0 and all(abs(time - n / rate) <= SLACK / rate for n, time in enumerate(times_F))
    fps = rate if is_constant else _mean_rate(times_F, span_at[last].duration)
    with _open_stream(path) as (container, stream):
        size = next(_frames_at(container, stream, [0.0])).size
    return VideoFile(path, times_F, fps, size, SLACK / fps if is_constant else 0.0)


def require_video(path: str | bytes) -> None:
    """Raises DataError unless a file can be opened as a video with frames within the pixel limit of images."""
    with _open_stream(path):
        pass


def frames_of_video(video: Any) -> list[Image.Image]:
    """All frames of a prompt's video: a path, bytes, or a list of frames in any form that ``load_image`` accepts."""
    return open_video(video).frames() if isinstance(video, FILES) else [load_image(frame) for frame in video]


def clip_of_video(video: Any) -> Video | list[Image.Image]:
    """All frames of a prompt's video, with the frame rate of a file or of a ``Video``; a list of frames has none."""
    if isinstance(video, FILES):
        file = open_video(video)
        return Video(file.frames(), file.fps)
    frames = frames_of_video(video)
    return Video(frames, video.frame_rate) if isinstance(video, Video) else frames


@dataclass(frozen=True, slots=True)
class _Span:
    """Start and duration of a packet in seconds; discarded packets are not displayed."""

    start: float | None
    duration: float = 0.0
    is_discarded: bool = False

    @classmethod
    def of(cls, packet: Any) -> _Span:
        if packet.pts is None:
            return cls(None, is_discarded=packet.is_discard)
        base = packet.time_base
        return cls(float(packet.pts * base), float((packet.duration or 0) * base), packet.is_discard)


def _decode_spans(path: str | bytes, rate: float) -> list[_Span]:
    """Times of decoded frames, for containers whose packets have none."""
    with _open_stream(path) as (container, stream):
        return [_Span(_time_of(frame, number, rate)) for number, frame in enumerate(_decode_frames(container, stream))]


def _time_of(frame: Any, number: int, rate: float) -> float:
    return number / (rate or 1.0) if frame.time is None else float(frame.time)


def _mean_rate(times_F: Sequence[float], last_duration: float) -> float:
    """Mean frames per second for a variable rate: the number of frames divided by their total duration."""
    F = len(times_F)
    length = times_F[-1] + (last_duration or times_F[-1] / max(F - 1, 1))
    return F / length if length > 0 else 1.0


def _frames_at(container: Any, stream: Any, times: Sequence[float]) -> Iterator[Image.Image]:
    """Yields the frame visible at each time (seconds after the first frame, ascending)."""
    remaining, start, previous = list(times), None, None
    rate = float(stream.average_rate or 0)
    for number, frame in enumerate(_decode_frames(container, stream)):
        time = _time_of(frame, number, rate)
        start = time if start is None else start
        while remaining and previous is not None and time - start > remaining[0] + TICK_S:
            yield _frame_image(previous)
            remaining.pop(0)
        if not remaining:
            return
        previous = frame
    if previous is None:
        raise DataError(_unreadable_message(str(container.name), "it has no frames"))
    for _ in remaining:
        yield _frame_image(previous)


def _decode_frames(container: Any, stream: Any) -> Iterator[Any]:
    from av.error import FFmpegError

    try:
        for frame in container.decode(stream):
            require_pixels(frame.width, frame.height)
            yield frame
    except (FFmpegError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(_unreadable_message(str(container.name), f"{type(error).__name__}: {error}")) from error


def _frame_image(frame: Any) -> Image.Image:
    """A frame in RGB, rotated as the file specifies."""
    is_transparent = any(component.is_alpha for component in frame.format.components) or frame.format.has_palette
    layout = "rgba" if is_transparent else "rgb24"
    image = in_rgb(Image.fromarray(np.ascontiguousarray(frame.to_ndarray(format=layout))))
    return image if frame.rotation % 90 else image.rotate(frame.rotation, expand=True)


@contextmanager
def _open_stream(path: str | bytes) -> Iterator[tuple[Any, Any]]:
    """Context with the container and its first video stream that is no cover image."""
    import av
    from av.stream import Disposition

    options = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "file"}
    try:
        container = av.open(path if isinstance(path, str) else BytesIO(path), options=options)
    except av.ArgumentError as error:  # a format outside of the whitelist
        raise DataError(_unreadable_message(path, f"it is of none of the formats {', '.join(FORMATS)}")) from error
    except (av.FFmpegError, OSError, ValueError) as error:
        raise DataError(_unreadable_message(path, f"{type(error).__name__}: {error}")) from error
    with container:
        streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not streams:
            content = "audio only" if container.streams.audio else "no video"
            raise DataError(_unreadable_message(path, f"it holds {content}"))
        if streams[0].codec_context is None:
            raise DataError(_unreadable_message(path, "its codec is unknown"))
        try:
            require_pixels(streams[0].width, streams[0].height)
            yield container, streams[0]
        except (av.FFmpegError, Image.DecompressionBombError) as error:
            raise DataError(_unreadable_message(path, f"{type(error).__name__}: {error}")) from error


def _name(path: str | bytes) -> str:
    return path[:200] if isinstance(path, str) else f"the video of {len(path)} bytes"


def _unreadable_message(path: str | bytes, reason: str) -> str:
    return f"{_name(path)} cannot be opened as a video ({reason[:200]}); replace it or leave its row out"
