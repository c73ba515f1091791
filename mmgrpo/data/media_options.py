"""Options beside an image or a video of a prompt, under the names that qwen-vl-utils has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import DataError

if TYPE_CHECKING:
    from mmgrpo.types import Prompt

SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width")
"""Options that decide the size at which the model sees an image or a frame."""
FRAMES = ("fps", "nframes", "min_frames", "max_frames", "video_start", "video_end", "total_pixels", "sample_fps")
"""Options that decide which frames of a video the model sees; ``sample_fps`` is the rate of a list of frames."""
OPTIONS = {"image": SIZES, "video": (*SIZES, *FRAMES), "audio": ()}
"""Options by kind of medium."""
UNSUPPORTED = ("audio_start", "audio_end", "use_audio_in_video")
_ALL = {*SIZES, *FRAMES, *UNSUPPORTED}

MIN_TOKENS, MAX_TOKENS = 4, 16384
"""Least and most tokens, of factor x factor pixels, of an image where no bound is set, as qwen-vl-utils has them."""


def require_options(kind: str, part: Mapping[str, Any], where: str) -> None:
    """Checks the options of a part of a message that shows a medium; keys that are no options are left alone.

    Args:
        kind: of the medium.
        part: the part, with ``type``.
        where: the row, for an error.

    Raises:
        DataError: for an option of another kind of medium, values that are no positive numbers, and options that
            exclude or need each other.
    """
    options = {name: value for name, value in part.items() if name in _ALL}
    for name, value in options.items():
        if name not in OPTIONS[kind]:
            allowed = ", ".join(OPTIONS[kind]) or "no options"
            raise DataError(f"{where}: '{name}' beside the {kind} is not supported; allowed is {allowed}; remove it")
        least_ok = value >= 0 if name == "video_start" and _is_number(value) else _is_number(value) and value > 0
        if not least_ok:
            raise DataError(f"{where}: '{name}' beside the {kind} must be a positive number, got {value!r:.60}")
    if ("resized_height" in options) != ("resized_width" in options):
        raise DataError(f"{where}: beside the {kind} give both resized_height and resized_width, or neither")
    if "fps" in options and "nframes" in options:
        raise DataError(f"{where}: beside the {kind} give fps or nframes, not both")
    for low, high in (("min_pixels", "max_pixels"), ("min_frames", "max_frames"), ("video_start", "video_end")):
        if low in options and high in options and options[low] > options[high]:
            raise DataError(f"{where}: '{low}' beside the {kind} is {options[low]}, above '{high}', {options[high]}")


def options_of(prompt: Prompt, kind: str) -> list[dict[str, Any]]:
    """The options beside each of a prompt's images or videos, in their order; an empty dict where there are none."""
    contents = [turn["content"] for turn in prompt.messages or () if isinstance(turn["content"], Sequence)]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    options = [
        {name: part[name] for name in OPTIONS[kind] if name in part} for part in parts if part.get("type") == kind
    ]
    media = prompt.images if kind == "image" else prompt.videos
    return options if len(options) == len(media) else [{} for _ in media]


def bounds_of(options: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    """Least and most pixels: as the options say; a bound that they leave open is the default, moved to the other.

    Args:
        options: beside an image.
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
    """(width, height) at which a Qwen-VL model sees an image with these options.

    Args:
        size: (width, height) of the image.
        options: beside it.
        factor: what both edges are a multiple of.
        least: pixels at least, where the options do not say; None: as qwen-vl-utils has it.
        most: pixels at most, likewise.

    Returns:
        (width, height).

    Raises:
        ValueError: for an image more than 200 times as long as wide, and bounds that no size is within.
        Source: ``smart_resize`` of qwen-vl-utils.
    """
    from qwen_vl_utils.vision_process import smart_resize

    if "resized_height" in options:
        width, height = options["resized_width"], options["resized_height"]
        low, high = MIN_TOKENS * factor**2, MAX_TOKENS * factor**2  # as fetch_image of qwen-vl-utils bounds it
    else:
        width, height = size
        defaults = (least or MIN_TOKENS * factor**2, most or MAX_TOKENS * factor**2)
        low, high = bounds_of(options, *defaults)
    rows, columns = smart_resize(height, width, factor, min_pixels=low, max_pixels=high)
    if min(rows, columns) < factor:
        raise ValueError(f"no size of whole tokens of {factor} x {factor} pixels has at most {high} pixels")
    return columns, rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
