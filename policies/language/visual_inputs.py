"""Images and videos of a prompt as input of a processor, with the sizes and frames of the row's options.

Videos are sampled and resized as qwen-vl-utils does it, from files read by PyAV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.media_options import FRAMES, SIZES, bounds_of, options_of, resized_size
from mmgrpo.data.videos import FILES, VideoFile, open_video
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt, Video

MERGED = 2
"""Patches per side of a token, as in qwen-vl-utils."""
PATCH = 14
"""Pixels per side of a patch, if the processor does not define it."""
SECONDS = "video_second_per_grid"
"""Tensor of Qwen-Omni with the duration of the frames of a token, in seconds."""
LIST_FPS = 2.0
"""Frame rate of a list of frames, in frames per second, as in qwen-vl-utils."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualInputs:
    """Images and videos of a prompt.

    Attributes:
        images: images at the size that the processor receives.
        videos: frames (F, C, H, W) of each video.
        metadata: metadata of each video, as transformers' ``VideoMetadata``.
        frame_rates: frames per second of each video whose prompt states it, that of a ``Video`` or ``sample_fps``; None
            for others.
        arguments: further arguments of the processor's call.
    """

    images: Sequence[Image.Image] = ()
    videos: Sequence[Tensor] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    frame_rates: Sequence[float | None] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


def visual_inputs(prompt: Prompt, processor: Any, video_settings: Mapping[str, Any]) -> VisualInputs:
    """The images and videos of a prompt, opened, sampled and resized.

    Args:
        prompt: the prompt.
        processor: processor of the model.
        video_settings: ``policy.video``; options of a row override it.

    Returns:
        The processor's inputs. If an option sets a size, the processor does not resize.

    Raises:
        DataError: a medium cannot be read, or an option does not apply to the model.
    """
    image_options, video_options = options_of(prompt, "image"), options_of(prompt, "video")
    arguments: dict[str, Any] = {}
    images = [load_image(image) for image in prompt.images]
    if any(image_options):
        images = _resized(images, image_options, getattr(processor, "image_processor", None), prompt)
        arguments["images_kwargs"] = {"do_resize": False}
    video_processor = getattr(processor, "video_processor", None)
    if any(_sizes(options) for options in (*video_options, video_settings if prompt.videos else {})):
        if _factor(video_processor) is not None:
            arguments["videos_kwargs"] = {"do_resize": False}
        elif sized := next((_sizes(options) for options in video_options if _sizes(options)), None):
            raise DataError(_not_applicable(prompt, sized, video_processor))
    videos = [
        _video(video, options, video_settings, _patch(video_processor))
        for video, options in zip(prompt.videos, video_options, strict=True)
    ]
    return VisualInputs(
        images=images,
        videos=[frames for frames, _ in videos],
        metadata=[metadata for _, metadata in videos],
        frame_rates=[
            options.get("sample_fps", getattr(video, "frame_rate", None))
            for video, options in zip(prompt.videos, video_options, strict=True)
        ],
        arguments=arguments,
    )


def with_frame_rates(tensors: dict[str, Any], visual: VisualInputs, processor: Any) -> dict[str, Any]:
    """A processor's tensors with the stated frame rates of videos, where the processor has one rate for all.

    Args:
        tensors: the tensors.
        visual: the inputs of the processor.
        processor: the processor.

    Returns:
        The tensors; those of Qwen-Omni have the duration of a pair of frames, in seconds, of each video.
    """
    if (second_N := tensors.get(SECONDS)) is None or not any(visual.frame_rates):
        return tensors
    num_frames = processor.video_processor.temporal_patch_size
    stated_N = [
        float(second) if rate is None else num_frames / rate
        for second, rate in zip(second_N, visual.frame_rates, strict=True)
    ]
    return {**tensors, SECONDS: torch.tensor(stated_N, dtype=second_N.dtype)}


def _sizes(options: Mapping[str, Any]) -> list[str]:
    return [name for name in (*SIZES, "total_pixels") if name in options]


def _factor(processor: Any) -> int | None:
    """The divisor of both edges of an image; None for a processor that does not resize as Qwen-VL's do."""
    patch, merged = getattr(processor, "patch_size", None), getattr(processor, "merge_size", None)
    return patch * MERGED if isinstance(patch, int) and merged == MERGED else None


def _patch(video_processor: Any) -> int:
    patch = getattr(video_processor, "patch_size", None)
    return patch if isinstance(patch, int) else PATCH


def _resized(
    images: Sequence[Image.Image], options: Sequence[Mapping[str, Any]], processor: Any, prompt: Prompt
) -> list[Image.Image]:
    """Images at the sizes of their options; without options, within the processor's bounds."""
    factor, size = _factor(processor), getattr(processor, "size", None)
    if factor is None:
        raise DataError(_not_applicable(prompt, [name for each in options for name in each], processor))
    least, most = (getattr(size, edge, None) or (size or {}).get(edge) for edge in ("shortest_edge", "longest_edge"))
    try:
        sizes = [
            resized_size(image.size, each, factor=factor, least=least, most=most)
            for image, each in zip(images, options, strict=True)
        ]
    except (ValueError, AssertionError) as error:
        raise DataError(f"an image of the prompt {prompt.text!r:.60} cannot be resized: {error}") from error
    return [image.resize(size) for image, size in zip(images, sizes, strict=True)]


def _not_applicable(prompt: Prompt, names: Sequence[str], processor: Any) -> str:
    return (
        f"the prompt {prompt.text!r:.60} has {', '.join(dict.fromkeys(names))} as media options, which "
        f"{type(processor).__name__} does not support: they are for Qwen-VL processors; remove them from the row, or "
        "set the size with policy.processor"
    )


def _video(
    video: Any, options: Mapping[str, Any], settings: Mapping[str, Any], patch: int
) -> tuple[Tensor, Mapping[str, Any]]:
    """A video's frames (F, C, H, W) as floats of 0 to 255, and their metadata for the processor."""
    from qwen_vl_utils.vision_process import fetch_video

    try:
        if isinstance(video, FILES):
            unset = {"nframes": ("fps",), "fps": ("nframes",)}
            dropped = {name for option in options for name in unset.get(option, ())}
            merged = {name: value for name, value in settings.items() if name not in dropped} | dict(options)
            return _from_file(open_video(video), merged, patch)
        frames = [load_image(frame) for frame in video]
        if not frames:
            raise ValueError("it has no frames")
        rate = {"sample_fps": video.frame_rate} if isinstance(video, Video) else {}
        if options:
            sizes = {name: value for name, value in settings.items() if name in _sizes(settings)}
            return _from_list(frames, sizes | rate | dict(options), patch)
        fetched: Any = fetch_video(
            {"video": frames, **settings, **rate}, return_video_metadata=True, image_patch_size=patch
        )
        return fetched
    except (OSError, ValueError, RuntimeError, AssertionError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the video {_name(video)} cannot be read: {error}") from error


def _name(video: Any) -> str:
    if isinstance(video, str | Path):
        return str(video)[:200]
    return f"of {len(video)} {'bytes' if isinstance(video, bytes) else 'frames'}" if hasattr(video, "__len__") else ""


def _from_file(video: VideoFile, options: Mapping[str, Any], patch: int) -> tuple[Tensor, Mapping[str, Any]]:
    """Frames of a file at equal distances; of a file with variable rate, at equal times."""
    chosen, total = _chosen(options, video.num_frames, video.fps)
    frames_TCHW = _sized(video.frames_at([index / video.fps for index in chosen]), len(chosen), options, patch)
    metadata = {"fps": video.fps, "frames_indices": chosen, "total_num_frames": total, "video_backend": "pyav"}
    return frames_TCHW, metadata


def _from_list(
    frames: Sequence[Image.Image], options: Mapping[str, Any], patch: int
) -> tuple[Tensor, Mapping[str, Any]]:
    """Frames of a list: all of them, or a selection by ``nframes``, ``video_start`` and ``video_end``."""
    from qwen_vl_utils.vision_process import FRAME_FACTOR

    unused = [name for name in ("fps", "min_frames", "max_frames") if name in options]
    if unused:
        raise ValueError(
            f"{', '.join(unused)} is not supported for a list of frames: give their rate as sample_fps, and the "
            "number of frames as nframes"
        )
    fps = float(options.get("sample_fps", LIST_FPS))
    selects = any(name in options for name in FRAMES if name not in ("sample_fps", "total_pixels"))
    padded = [*frames, *[frames[-1]] * (len(frames) % FRAME_FACTOR)]
    chosen, total = list(range(len(padded))), len(padded)
    if selects:
        rate = {} if "nframes" in options else {"fps": fps, "max_frames": len(padded)}
        chosen, total = _chosen({**options, **rate}, len(padded), fps)
    frames_TCHW = _sized([padded[index] for index in chosen], len(chosen), options, patch)
    return frames_TCHW, {"fps": fps, "frames_indices": chosen, "total_num_frames": total}


def _chosen(options: Mapping[str, Any], num_frames: int, fps: float) -> tuple[list[int], int]:
    """The sampled frame indices, and the number of frames they are sampled from."""
    from qwen_vl_utils.vision_process import calculate_video_frame_range, smart_nframes

    first, last, total = calculate_video_frame_range(dict(options), num_frames, fps)
    count = smart_nframes(dict(options), total_frames=total, video_fps=fps)
    return torch.linspace(first, last, count).round().long().tolist(), total


def _sized(frames: Any, count: int, options: Mapping[str, Any], patch: int) -> Tensor:
    """Frames at the size of ``fetch_video`` of qwen-vl-utils, each resized when it is read, (F, C, H, W)."""
    from qwen_vl_utils import vision_process
    from torchvision.transforms import InterpolationMode, functional

    factor = patch * MERGED
    least = vision_process.VIDEO_MIN_TOKEN_NUM * factor**2
    total = options.get("total_pixels", vision_process.MODEL_SEQ_LEN * factor**2 * 0.9)
    most = min(vision_process.VIDEO_MAX_TOKEN_NUM * factor**2, total / count * vision_process.FRAME_FACTOR)
    most = max(most, int(options.get("min_pixels", min(least, options.get("max_pixels", least))) * 1.05))
    low, high = bounds_of(options, least, int(most))
    size: list[int] | None = None
    parts = []
    for frame in frames:
        if size is None:
            bounds = {"min_pixels": low, "max_pixels": min(high, most)}
            sizes = options if "resized_height" in options else bounds
            width, height = resized_size(frame.size, sizes, factor=factor, least=None, most=None)
            size = [height, width]
        pixels = torch.from_numpy(np.asarray(frame).copy()).permute(2, 0, 1)
        parts.append(functional.resize(pixels, size, interpolation=InterpolationMode.BICUBIC, antialias=True))
    return torch.stack(parts).float()
