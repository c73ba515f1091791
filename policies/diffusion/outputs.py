"""What a pipeline gives back, as what rewards judge."""

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

MEDIA = ("images", "frames", "videos", "audios")  # fields looked at first, in this order
SOUNDS = ("audios", "audio", "sound")
RATES = ("output_sampling_rate", "sampling_rate", "sample_rate")  # what components call it in their configuration
COLOURS = (1, 3, 4)  # channels, last, of an array that is a picture


def samples_of(
    rows: Sequence[DenoisingRow],
    output: Any,
    latents: Sequence[Tensor] | None = None,
    *,
    rate: int | None,
    frame_rate: float | None = None,
    failures: Sequence[str | None] | None = None,
) -> list[Sample]:
    """What the rewards will see of a pipeline's output: of each row a picture, a video, a sound or an array.

    Args:
        rows: that the pipeline was called with.
        output: what the call returned.
        latents: of each row, its final state, where kept.
        rate: of its sound, in Hz; None where nobody says it: sound is an array then.
        frame_rate: of videos, in frames a second.
        failures: of each row, why its result is none.

    Returns:
        A sample per row; one with a video has the sound beside it.
    """
    sounds = sounds_of(output, len(rows), rate)
    is_sound = sounds is not None and set(_named(output)) <= set(SOUNDS)
    media = [None] * len(rows) if is_sound else media_of(output, len(rows))
    states, audios = latents or [None] * len(rows), sounds or [None] * len(rows)
    values_finite = zip(_finite_sounds(output, len(rows)), map(_is_finite, media), strict=True)
    checked = [None if all(both) else DECODED for both in values_finite]
    reasons = [known or own for known, own in zip(failures or [None] * len(rows), checked, strict=True)]
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
            latent=latent,
            failure=reason,
        )
        for row, item, audio, latent, reason in zip(rows, media, audios, states, reasons, strict=True)
    ]


def rate_of(pipeline: Any) -> int | None:
    """The sampling rate of the sound that a pipeline makes, in Hz, read off what makes it; None where nothing says it.

    A vocoder speaks before an autoencoder, whose rate may be that of the spectrograms it decodes.
    """
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    for name in sorted(modules, key=lambda name: "vocoder" not in name):
        config = getattr(modules[name], "config", None)
        found = [getattr(config, key, None) for key in RATES]
        if rate := next((rate for rate in found if isinstance(rate, int) and rate > 0), None):
            return rate
    return None


def sounds_of(output: Any, num_rows: int, rate: int | None) -> list[Audio] | None:
    """The sound of each row in a pipeline's output; None where it gives none, or of no known rate.

    Values beyond -1 and 1 are cut off, and those that are no numbers are silence: such a sample is a failure.

    Raises: RowsError for another number of sounds than rows.
    """
    found = _sounds(output)
    if found is None or rate is None:
        return None
    if num_rows == 1 and len(found) != 1:
        found = [found]
    if len(found) != num_rows:
        raise RowsError(f"the pipeline gave {len(found)} sounds for {num_rows} prompts; set rollout_batch: 1")
    return [_sound(one, rate) for one in found]


def _sounds(output: Any) -> Any | None:
    """The field of a pipeline's output that holds sounds; None where there is none."""
    named = _named(output)
    return next((named[name] for name in SOUNDS if named.get(name) is not None), None)


def _sound(values: Any, rate: int) -> Audio:
    values = torch.as_tensor(values).detach().float().cpu()
    while values.ndim > 2 and len(values) == 1:
        values = values[0]
    try:
        return Audio(torch.atleast_2d(values).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1), rate)
    except DataError as error:
        raise PolicyError(f"what the pipeline gave as sound is none: {error}") from error


def _finite_sounds(output: Any, num_rows: int) -> list[bool]:
    """Which rows' sounds are finite; True without sounds."""
    sounds = _sounds(output)
    if sounds is None or num_rows not in (1, len(sounds)):
        return [True] * num_rows
    finite = [bool(torch.as_tensor(sound).isfinite().all()) for sound in sounds]
    return finite if num_rows == len(finite) else [all(finite)]


def _is_finite(item: Any) -> bool:
    return not isinstance(item, Tensor) or bool(item.isfinite().all())


def media_of(output: Any, num_rows: int) -> Sequence[Any]:
    """The picture, frames or array of each row in a pipeline's output.

    The first of the output's fields that has an entry for each row; a single row may also be given as its frames
    alone. Pixels from 0 to 1 become pictures: arrays with channels last, tensors with channels before height and width.

    Args:
        output: what the call returned.
        num_rows: rows that it was called with.

    Returns:
        One entry a row.

    Raises:
        RowsError: another number of results than rows.
        PolicyError: the output holds nothing that is known.
    """
    fields = list(_fields(output))
    for found in fields:
        if len(found) == num_rows:
            return [_medium(item) for item in found]
    if num_rows == 1 and fields:
        return [_medium(fields[0])]  # its frames, or several arrays of it
    what = f"{len(fields[0])} results" if fields else f"a {type(output).__name__} without pictures or arrays"
    kind = RowsError if fields else PolicyError
    raise kind(
        f"the pipeline gave {what} for {num_rows} prompts; mmgrpo needs one picture, list of frames or array a prompt: "
        "leave output_type at its default and set rollout_batch: 1 if it takes one"
    )


def _fields(output: Any) -> Iterator[Any]:
    """Sequences and arrays among what a call returned; pictures and sound first."""
    named = _named(output)
    parts = [named.pop(name, None) for name in MEDIA] + list(named.values())
    if isinstance(output, (tuple, list, Tensor, np.ndarray)):
        parts = [output] if not isinstance(output, tuple) else list(output)
    for part in parts:
        if isinstance(part, Image.Image):
            yield [part]
        elif _is_sequence_of_media(part):
            yield part


def _named(output: Any) -> dict[str, Any]:
    """What a call returned, by name; nothing of what has no names."""
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
        if _are_pictures(item):
            return list(item)
        if len(item) == 1:
            return _medium(item[0])
        item = torch.stack([torch.as_tensor(part) for part in item])
    values = torch.as_tensor(item).detach().float().cpu()
    if isinstance(item, Tensor) and values.ndim in (3, 4) and values.shape[-3] in COLOURS and _are_levels(values):
        values = values.movedim(-3, -1)  # output_type pt
    if values.ndim == 3 and values.shape[-1] in COLOURS and _are_levels(values):
        return _picture(values)
    if values.ndim == 4 and values.shape[-1] in COLOURS and _are_levels(values):
        return [_picture(frame) for frame in values]
    return values


def _are_pictures(found: Any) -> bool:
    return isinstance(found, (list, tuple)) and all(isinstance(item, Image.Image) for item in found)


def _are_levels(values: Tensor) -> bool:
    return bool((values >= 0).all() and (values <= 1).all())


def _picture(values: Tensor) -> Image.Image:
    levels = (255 * values).round().to(torch.uint8).numpy()
    return Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
