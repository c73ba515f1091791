"""Samples from a pipeline's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmgrpo.errors import DataError, PolicyError
from mmgrpo.types import Audio, Sample

from .call_form import RowsError
from .denoising_rows import DenoisingRow
from .failures import DECODED

SIZES = ("width", "height", "num_frames")
"""Call arguments for the size of images and videos."""
LENGTHS = ("audio_end_in_s", "audio_length_in_s", "audio_duration", "audio_duration_s", "duration")
"""Call arguments for the length of audio."""
MEDIA = ("images", "frames", "videos", "audios")  # fields read first, in this order
AUDIO_FIELDS = ("audios", "audio", "sound")
RATES = ("output_sampling_rate", "sampling_rate", "sample_rate")  # keys of components' configurations
CHANNELS = (1, 3, 4)  # numbers of channels, last, of an array that is an image


def samples_of(
    rows: Sequence[DenoisingRow],
    output: Any,
    *,
    rate: int | None,
    frame_rate: float | None = None,
    failures: Sequence[str | None] | None = None,
) -> list[Sample]:
    """The samples of a pipeline's output: an image, a video, audio or an array per row.

    Args:
        rows: the rows of the call.
        output: the result of the call.
        rate: sampling rate of its audio, in Hz; None if unknown: audio is an array then.
        frame_rate: of videos, in frames per second.
        failures: failure reason per row.

    Returns:
        A sample per row; one with a video has its audio too.
    """
    clips = audios_of(output, len(rows), rate)
    is_audio = clips is not None and set(_fields_by_name(output)) <= set(AUDIO_FIELDS)
    media = [None] * len(rows) if is_audio else media_of(output, len(rows))
    audios = clips or [None] * len(rows)
    values_finite = zip(_finite_audios(output, len(rows)), map(_is_finite, media), strict=True)
    checked = [None if all(both_finite) else DECODED for both_finite in values_finite]
    reasons = [
        failure or non_finite for failure, non_finite in zip(failures or [None] * len(rows), checked, strict=True)
    ]
    return [
        Sample(
            row.prompt,
            row.group,
            row.member,
            image=item if isinstance(item, Image.Image) else None,
            video=item if isinstance(item, list) else None,
            frame_rate=frame_rate if isinstance(item, list) else None,
            audio=audio,
            array=item if isinstance(item, Tensor) else None,
            failure=reason,
        )
        for row, item, audio, reason in zip(rows, media, audios, reasons, strict=True)
    ]


def undecoded_samples(rows: Sequence[DenoisingRow], failures: Sequence[str | None]) -> list[Sample]:
    """The samples of rows whose latents are not decoded, with the failure reason of each."""
    pairs = zip(rows, failures, strict=True)
    return [Sample(row.prompt, row.group, row.member, failure=failure) for row, failure in pairs]


def latent_size(call: Mapping[str, Any]) -> dict[str, float]:
    """``Sample.latent_size``: the arguments of a call that set the size of its image or video, or length of audio."""
    return {name: call[name] for name in (*SIZES, *LENGTHS) if call.get(name) is not None}


def audio_sampling_rate(pipeline: Any) -> int | None:
    """The sampling rate of the pipeline's audio, in Hz, from its components' configurations; None if they have none.

    A vocoder takes precedence over an autoencoder, whose rate may be that of the spectrograms it decodes.
    """
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    for name in sorted(modules, key=lambda name: "vocoder" not in name):
        config = getattr(modules[name], "config", None)
        rates = [getattr(config, key, None) for key in RATES]
        if rate := next((rate for rate in rates if isinstance(rate, int) and rate > 0), None):
            return rate
    return None


def audios_of(output: Any, num_rows: int, rate: int | None) -> list[Audio] | None:
    """The audio of each row in a pipeline's output; None without audio, or without a known rate.

    Values are clamped to -1 and 1, and NaN becomes silence: such a sample is a failure.

    Raises: RowsError if the number of clips is not that of rows.
    """
    clips = _audio_field(output)
    if clips is None or rate is None:
        return None
    if num_rows == 1 and len(clips) != 1:
        clips = [clips]
    if len(clips) != num_rows:
        raise RowsError(f"the pipeline returned {len(clips)} audio clips for {num_rows} prompts; set rollout_batch: 1")
    return [_audio(clip, rate) for clip in clips]


def _audio_field(output: Any) -> Any | None:
    """The field of a pipeline's output with audio; None without one."""
    fields = _fields_by_name(output)
    return next((fields[name] for name in AUDIO_FIELDS if fields.get(name) is not None), None)


def _audio(values: Any, rate: int) -> Audio:
    values = torch.as_tensor(values).detach().float().cpu()
    while values.ndim > 2 and len(values) == 1:
        values = values[0]
    try:
        return Audio(torch.atleast_2d(values).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1), rate)
    except DataError as error:
        raise PolicyError(f"the pipeline's audio output is invalid: {error}") from error


def _finite_audios(output: Any, num_rows: int) -> list[bool]:
    """Which rows have finite audio; True without audio."""
    clips = _audio_field(output)
    if clips is None or num_rows not in (1, len(clips)):
        return [True] * num_rows
    finite = [bool(torch.as_tensor(clip).isfinite().all()) for clip in clips]
    return finite if num_rows == len(finite) else [all(finite)]


def _is_finite(item: Any) -> bool:
    return not isinstance(item, Tensor) or bool(item.isfinite().all())


def media_of(output: Any, num_rows: int) -> Sequence[Any]:
    """The image, frames or array of each row in a pipeline's output.

    The first output field with one entry per row; for a single row, also the frames alone. Pixels from 0 to 1 become
    images: arrays with channels last, tensors with channels before height and width.

    Args:
        output: the result of the call.
        num_rows: rows of the call.

    Returns:
        One entry per row.

    Raises:
        RowsError: the number of results is not that of rows.
        PolicyError: the output has no media.
    """
    fields = list(_fields(output))
    for field in fields:
        if len(field) == num_rows:
            return [_medium(item) for item in field]
    if num_rows == 1 and fields:
        return [_medium(fields[0])]  # its frames, or several arrays
    results = f"{len(fields[0])} results" if fields else f"a {type(output).__name__} without images or arrays"
    kind = RowsError if fields else PolicyError
    raise kind(
        f"the pipeline returned {results} for {num_rows} prompts; mmgrpo needs one image, list of frames or array per "
        "prompt: leave output_type at its default, and set rollout_batch: 1 if it takes a single prompt"
    )


def _fields(output: Any) -> Iterator[Any]:
    """Sequences and arrays in the result of a call; images and audio first."""
    fields = _fields_by_name(output)
    parts = [fields.pop(name, None) for name in MEDIA] + list(fields.values())
    if isinstance(output, (tuple, list, Tensor, np.ndarray)):
        parts = [output] if not isinstance(output, tuple) else list(output)
    for part in parts:
        if isinstance(part, Image.Image):
            yield [part]
        elif _is_sequence_of_media(part):
            yield part


def _fields_by_name(output: Any) -> dict[str, Any]:
    """The fields of a call's result by name; empty if it has no names."""
    return dict(output) if isinstance(output, Mapping) else dict(vars(output)) if hasattr(output, "__dict__") else {}


def _is_sequence_of_media(part: Any) -> bool:
    if isinstance(part, (Tensor, np.ndarray)):
        return part.ndim > 0 and len(part) > 0
    kinds = (Image.Image, Tensor, np.ndarray, list)
    return isinstance(part, (list, tuple)) and len(part) > 0 and isinstance(part[0], kinds)


def _medium(item: Any) -> Image.Image | list[Image.Image] | Tensor:
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, (list, tuple)):
        if _are_images(item):
            return list(item)
        if len(item) == 1:
            return _medium(item[0])
        item = torch.stack([torch.as_tensor(part) for part in item])
    values = torch.as_tensor(item).detach().float().cpu()
    if isinstance(item, Tensor) and values.ndim in (3, 4) and values.shape[-3] in CHANNELS and _are_levels(values):
        values = values.movedim(-3, -1)  # output_type pt
    if values.ndim == 3 and values.shape[-1] in CHANNELS and _are_levels(values):
        return _image(values)
    if values.ndim == 4 and values.shape[-1] in CHANNELS and _are_levels(values):
        return [_image(frame) for frame in values]
    return values


def _are_images(items: Any) -> bool:
    return isinstance(items, (list, tuple)) and all(isinstance(item, Image.Image) for item in items)


def _are_levels(values: Tensor) -> bool:
    return bool((values >= 0).all() and (values <= 1).all())


def _image(values: Tensor) -> Image.Image:
    levels = (255 * values).round().to(torch.uint8).numpy()
    return Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
