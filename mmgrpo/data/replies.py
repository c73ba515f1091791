"""Turns of an environment with media as plain data: texts, numbers and tensors that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmgrpo.data.audio_loading import load_audio
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.videos import frames_of_video
from mmgrpo.environment import Turn
from mmgrpo.tool_calls import ToolResult
from mmgrpo.types import Audio


def plain_reply(reply: Turn | None) -> dict[str, Any] | None:
    """Returns the text, role and media of a turn, by which a row is scored again; None for a turn without media."""
    if reply is None or not reply.num_media:
        return None
    audios = [load_audio(audio) for audio in reply.audios]
    return {
        "text": reply.text,
        "role": reply.role,
        "images": [_pixels(load_image(image)) for image in reply.images],
        "videos": [[_pixels(frame) for frame in frames_of_video(video)] for video in reply.videos],
        "audios": [(audio.values, audio.sampling_rate) for audio in audios],
        "results": [(result.name, result.text, result.num_images, result.failed) for result in reply.results],
    }


def reply_of(plain: Mapping[str, Any] | None) -> Turn | None:
    """Returns the turn of ``plain_reply``."""
    if plain is None:
        return None
    return Turn(
        text=plain["text"],
        role=plain["role"],
        images=[_image(pixels_HWC) for pixels_HWC in plain["images"]],
        videos=[[_image(pixels_HWC) for pixels_HWC in frames] for frames in plain["videos"]],
        audios=[Audio(values, rate) for values, rate in plain["audios"]],
        results=[ToolResult(*result) for result in plain.get("results", ())],
    )


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB")))


def _image(pixels_HWC: Tensor) -> Image.Image:
    return Image.fromarray(pixels_HWC.numpy())
