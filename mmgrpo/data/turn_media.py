"""The images, videos and audio of an environment's turn, opened once: files may change, and reach no other process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from mmgrpo.data.audio_loading import load_audio
from mmgrpo.data.image_loading import load_image, require_local_file
from mmgrpo.data.videos import FILES, open_video
from mmgrpo.errors import DataError
from mmgrpo.samples import MEDIA, Audio, Turn, Video

MAX_MEDIA = 64
"""Maximum number of images, of videos and of audio in a turn."""

MAX_PIXELS = 2**26
"""Maximum number of pixels of an image, and of all frames of a video together."""

MAX_FILE_BYTES = 2**26
"""Maximum size of a video file."""

MAX_SECONDS = 1800.0
"""Maximum duration of audio."""


def opened_media(turn: Turn) -> dict[str, tuple[Any, ...]]:
    """The media of a turn by the name of its field: images, audio, and videos as frames or as the bytes of a file.

    Args:
        turn: the turn.

    Returns:
        The media, within ``MAX_MEDIA``, ``MAX_PIXELS``, ``MAX_FILE_BYTES`` and ``MAX_SECONDS``.

    Raises:
        TypeError: media that are no list.
        ValueError: media beyond these limits.
        DataError: a medium that cannot be opened.
    """
    opened = {}
    for kind, name in MEDIA.items():
        media = getattr(turn, name)
        if not isinstance(media, list | tuple):
            raise TypeError(f"Turn.{name} must be a list, got {type(media).__name__}")
        if len(media) > MAX_MEDIA:
            raise ValueError(f"Turn.{name} must be at most {MAX_MEDIA}, got {len(media)}")
        opened[name] = tuple(_OPENED[kind](medium) for medium in media)
    return opened


def video_bytes(video: str | Path | bytes) -> bytes:
    """The content of a video file.

    Args:
        video: its path, or its content.

    Returns:
        The content.

    Raises:
        ValueError: it has more than ``MAX_FILE_BYTES`` bytes.
        DataError: it is no local file.
    """
    if isinstance(video, bytes):
        size = len(video)
    else:
        video = Path(require_local_file(str(video)))
        size = video.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"a video of {size} bytes is too large; at most {MAX_FILE_BYTES} are allowed")
    return video if isinstance(video, bytes) else video.read_bytes()


def _image(medium: Any, source: str = "an image of Turn.images") -> Image.Image:
    image = load_image(medium)
    if not image.width * image.height:
        raise ValueError(f"{source} has no pixels: {image.width} x {image.height}")
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{source} has {image.size} pixels; at most {MAX_PIXELS} are allowed")
    return image


def _video(medium: Any) -> Any:
    if isinstance(medium, FILES):
        content = video_bytes(medium)
        open_video(content)  # raises an error for a file that cannot be read
        return content
    if not isinstance(medium, Sequence):
        raise DataError(
            f"a video of Turn.videos cannot be read: it is a {type(medium).__name__}, and no list of frames"
        )
    frames, num_pixels = [], 0
    for frame in medium:
        frames.append(_image(frame, "a frame of Turn.videos"))
        num_pixels += frames[-1].width * frames[-1].height
        if num_pixels > MAX_PIXELS:
            raise ValueError(f"the frames of a video of Turn.videos have more than {MAX_PIXELS} pixels together")
    if not frames:
        raise DataError("a video of Turn.videos cannot be read: it has no frames")
    return Video(frames, medium.frame_rate) if isinstance(medium, Video) else tuple(frames)


def _audio(medium: Any) -> Audio:
    audio = load_audio(medium)
    if audio.duration_s > MAX_SECONDS:
        raise ValueError(f"an audio of Turn.audios has {audio.duration_s:.0f} s; at most {MAX_SECONDS:g} are allowed")
    return audio


_OPENED: Mapping[str, Callable[[Any], Any]] = {"image": _image, "video": _video, "audio": _audio}
