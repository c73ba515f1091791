"""Options of an image or a video of a prompt, with the names of qwen-vl-utils."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import DataError

if TYPE_CHECKING:
    from mmgrpo.types import Prompt

SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width")
"""Options for the size of an image or a frame in the model's input."""
FRAMES = ("fps", "nframes", "min_frames", "max_frames", "video_start", "video_end", "total_pixels", "sample_fps")
"""Options that select the frames of a video; ``sample_fps`` is the rate of a list of frames."""
OPTIONS = {"image": SIZES, "video": (*SIZES, *FRAMES), "audio": ()}
"""Options by kind of medium."""
UNSUPPORTED = ("audio_start", "audio_end", "use_audio_in_video")
_ALL = {*SIZES, *FRAMES, *UNSUPPORTED}

MIN_TOKENS, MAX_TOKENS = 4, 16384
"""Default minimum and maximum of an image's tokens, of factor x factor pixels each, as in qwen-vl-utils."""


def require_options(kind: str, part: Mapping[str, Any], where: str) -> None:
    """Checks the options of a message part with a medium; other keys are not checked.

    Args:
        kind: kind of the medium.
        part: the part, with ``type``.
        where: name of the row in errors.

    Raises:
        DataError: an option of another kind of medium, a value that is no positive number, or options that exclude or
            require each other.
    """
    options = {name: value for name, value in part.items() if name in _ALL}
    for name, value in options.items():
        if name not in OPTIONS[kind]:
            allowed = ", ".join(OPTIONS[kind]) or "no options"
            raise DataError(
                f"{where}: the option '{name}' of the {kind} is not supported; allowed: {allowed}; remove it"
            )
        least_ok = value >= 0 if name == "video_start" and _is_number(value) else _is_number(value) and value > 0
        if not least_ok:
            raise DataError(f"{where}: the option '{name}' of the {kind} must be a positive number, got {value!r:.60}")
    if ("resized_height" in options) != ("resized_width" in options):
        raise DataError(f"{where}: the {kind} needs both resized_height and resized_width, or neither of them")
    if "fps" in options and "nframes" in options:
        raise DataError(f"{where}: set fps or nframes of the {kind}, not both")
    for low, high in (("min_pixels", "max_pixels"), ("min_frames", "max_frames"), ("video_start", "video_end")):
        if low in options and high in options and options[low] > options[high]:
            raise DataError(f"{where}: '{low}' of the {kind} is {options[low]}, above '{high}', {options[high]}")


def options_of(prompt: Prompt, kind: str) -> list[dict[str, Any]]:
    """The options of each of a prompt's images or videos, in order; an empty dict without options."""
    contents = [turn["content"] for turn in prompt.messages or () if isinstance(turn["content"], Sequence)]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    options = [
        {name: part[name] for name in OPTIONS[kind] if name in part} for part in parts if part.get("type") == kind
    ]
    media = prompt.images if kind == "image" else prompt.videos
    return options if len(options) == len(media) else [{} for _ in media]


def bounds_of(options: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    """The minimum and maximum of pixels from the options; a missing bound is the default, moved to the other if needed.

    Args:
        options: options of an image.
        least: default of ``min_pixels``.
        most: default of ``max_pixels``.

    Returns:
        (least, most).
    """
    low, high = options.get("min_pixels"), options.get("max_pixels")
    low = min(least, least if high is None else high) if low is None else low
    return int(low), int(max(most, low) if high is None else high)


def resized_size(
    size: tuple[int, int], options: Mapping[str, Any], *, factor: int, least: int | None, most: int | None
) -> tuple[int, int]:
    """(width, height) of an image with these options in the input of a Qwen-VL model.

    Args:
        size: (width, height) of the image.
        options: options of the image.
        factor: both edges are multiples of it.
        least: minimum of pixels if not in the options; None: that of qwen-vl-utils.
        most: maximum of pixels if not in the options; None: that of qwen-vl-utils.

    Returns:
        (width, height).

    Raises:
        ValueError: an image with an aspect ratio above 200, or bounds that no size satisfies.
        Source: ``smart_resize`` of qwen-vl-utils.
    """
    from qwen_vl_utils.vision_process import smart_resize

    if "resized_height" in options:
        width, height = options["resized_width"], options["resized_height"]
        low, high = MIN_TOKENS * factor**2, MAX_TOKENS * factor**2  # the bounds of fetch_image in qwen-vl-utils
    else:
        width, height = size
        defaults = (least or MIN_TOKENS * factor**2, most or MAX_TOKENS * factor**2)
        low, high = bounds_of(options, *defaults)
    rows, columns = smart_resize(height, width, factor, min_pixels=low, max_pixels=high)
    if min(rows, columns) < factor:
        raise ValueError(f"no image size that is a multiple of {factor} x {factor} pixels has at most {high} pixels")
    return columns, rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
