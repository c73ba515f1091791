"""What a pipeline gives back, as what rewards judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.policies.denoising.calls import RowsError
from mmgrpo.policies.denoising.rows import Row
from mmgrpo.types import Sample

MEDIA = ("images", "frames", "videos", "audios")  # fields looked at first, in this order
COLOURS = (1, 3, 4)  # channels, last, of an array that is a picture


def samples_of(
    rows: Sequence[Row],
    media: Sequence[Any],
    latents: Sequence[Tensor] | None = None,
    *,
    frame_rate: float | None = None,
) -> list[Sample]:
    """What the rewards will see: of each row a picture, a video or an array; with the final states, where kept.

    Args:
        rows: whom for.
        media: what the pipeline made, one entry a row.
        latents: the final states.
        frame_rate: of videos, in frames a second.

    Returns:
        The samples.
    """
    return [
        Sample(
            row.prompt,
            row.group,
            row.member,
            image=item if isinstance(item, Image.Image) else None,
            video=item if isinstance(item, list) else None,
            frame_rate=frame_rate if isinstance(item, list) else None,
            array=item if isinstance(item, Tensor) else None,
            latent=latent,
        )
        for row, item, latent in zip(rows, media, latents or [None] * len(rows), strict=True)
    ]


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
        "leave output_type and num_images_per_prompt at their defaults and set rollout_batch: 1 if it takes one"
    )


def _fields(output: Any) -> Iterator[Any]:
    """Sequences and arrays among what a call returned; pictures and sound first."""
    named = dict(output) if isinstance(output, Mapping) else dict(vars(output)) if hasattr(output, "__dict__") else {}
    parts = [named.pop(name, None) for name in MEDIA] + list(named.values())
    if isinstance(output, (tuple, list, Tensor, np.ndarray)):
        parts = [output] if not isinstance(output, tuple) else list(output)
    for part in parts:
        if isinstance(part, Image.Image):
            yield [part]
        elif _is_sequence_of_media(part):
            yield part


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
