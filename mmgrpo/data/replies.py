"""Turns of an environment with media as plain data: texts, numbers and tensors that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmgrpo.data.turn_media import opened_media
from mmgrpo.environment import Turn
from mmgrpo.tool_calls import ToolResult
from mmgrpo.types import Audio, Video

RESULT_FIELDS = ("name", "text", "num_images", "num_videos", "num_audios", "failed")
"""The fields of a result by which a row is scored again."""


def plain_reply(reply: Turn | None) -> dict[str, Any] | None:
    """Returns the text, role and media of a turn, by which a row is scored again; None for a turn without media."""
    if reply is None or not reply.num_media:
        return None
    media = opened_media(reply)
    return {
        "text": reply.text,
        "role": reply.role,
        "images": [_pixels(image) for image in media["images"]],
        "videos": [_plain_video(video) for video in media["videos"]],
        "audios": [(audio.values, audio.sampling_rate) for audio in media["audios"]],
        "results": [{name: getattr(result, name) for name in RESULT_FIELDS} for result in reply.results],
    }


def reply_of(plain: Mapping[str, Any] | None) -> Turn | None:
    """Returns the turn of ``plain_reply``."""
    if plain is None:
        return None
    return Turn(
        text=plain["text"],
        role=plain["role"],
        images=[_image(pixels_HWC) for pixels_HWC in plain["images"]],
        videos=[_video(video) for video in plain["videos"]],
        audios=[Audio(values, rate) for values, rate in plain["audios"]],
        results=[ToolResult(**result) for result in plain["results"]],
    )


def _plain_video(video: Any) -> dict[str, Any]:
    if isinstance(video, bytes):
        return {"file": torch.frombuffer(bytearray(video), dtype=torch.uint8)}
    return {"frames": [_pixels(frame) for frame in video], "frame_rate": getattr(video, "frame_rate", None)}


def _video(plain: Mapping[str, Any]) -> Any:
    if "file" in plain:
        return plain["file"].numpy().tobytes()
    frames = [_image(pixels_HWC) for pixels_HWC in plain["frames"]]
    return frames if plain["frame_rate"] is None else Video(frames, plain["frame_rate"])


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB")))


def _image(pixels_HWC: Tensor) -> Image.Image:
    return Image.fromarray(pixels_HWC.numpy())
