"""Serialization of images, videos, audio and arrays: named tensors of a safetensors file, or strings in JSON.

Axes: H height, W width, C channels, T frames, N samples.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from mmgrpo.data.image_loading import UNREADABLE
from mmgrpo.data.videos import clip_of_video
from mmgrpo.errors import DataError
from mmgrpo.samples import Audio, Video

MIN_PIXELS = 2**12
"""Minimum number of pixels that an image or audio counts as, since each object has a memory overhead."""
DTYPES = (np.uint8, np.float32)
"""Data types of tensors in a request: uint8 for images and videos, float32 for audio and arrays."""

_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}  # modes that an array represents exactly
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

Array = NDArray[Any]


class WireTensor(BaseModel):
    """An image (H, W) or (H, W, C), or a video (T, H, W) or (T, H, W, C), by the name of its uint8 tensor."""

    model_config = _STRICT

    tensor: str


WireImage = str | WireTensor
WireVideo = list[str] | WireTensor


class WireClip(BaseModel):
    """A video of a prompt or of a turn with its frame rate, in frames per second."""

    model_config = _STRICT

    frames: WireVideo
    frame_rate: float


class WireValues(BaseModel):
    """float32 numbers: the name of their tensor, or their shape and their values in base64."""

    model_config = _STRICT

    tensor: str | None = None
    shape: list[int] | None = None
    values: str | None = None


class WireAudio(BaseModel):
    """An ``Audio``, its values (C, N)."""

    model_config = _STRICT

    sampling_rate: int
    values: WireValues


def packed_audio(audio: Audio, tensors: dict[str, Array] | None) -> dict[str, Any]:
    """Serialize audio for the document."""
    return {"sampling_rate": audio.sampling_rate, "values": packed_values(audio.values, tensors)}


def packed_values(values: Tensor, tensors: dict[str, Array] | None) -> dict[str, Any]:
    """Serialize numbers for the document; they are added to ``tensors`` as float32, or encoded in the text without
    it.
    """
    numbers = values.numpy().astype("<f4")
    if tensors is not None:
        return _as_tensor(numbers, tensors)
    return {"shape": list(numbers.shape), "values": base64.b64encode(numbers.tobytes()).decode()}


def packed_image(image: Image.Image, tensors: dict[str, Array] | None) -> Any:
    """An image for a request: a reference to an array that is added to ``tensors``, or a PNG without them."""
    if tensors is None or not _is_array(image):
        return _png(image)
    return _as_tensor(np.asarray(image), tensors)


def packed_video(frames: Sequence[Image.Image], tensors: dict[str, Array] | None) -> Any:
    """The frames of a video for a request: one array, or a PNG per frame without ``tensors`` or for unequal frames."""
    same = len({(frame.mode, frame.size) for frame in frames}) == 1
    if tensors is None or not same or not all(_is_array(frame) for frame in frames):
        return [_png(frame) for frame in frames]
    return _as_tensor(np.stack([np.asarray(frame) for frame in frames]), tensors)


def packed_clip(video: Any, tensors: dict[str, Array] | None) -> Any:
    """A video of a prompt or of a turn for a request, in a form of ``Prompt.videos``, with its frame rate if known."""
    clip = clip_of_video(video)
    frames = packed_video(clip, tensors)
    return {"frames": frames, "frame_rate": clip.frame_rate} if isinstance(clip, Video) else frames


def _as_tensor(array: Array, tensors: dict[str, Array]) -> dict[str, str]:
    name = str(len(tensors))
    tensors[name] = np.ascontiguousarray(array)
    return {"tensor": name}


def _is_array(image: Image.Image) -> bool:
    return image.mode in _CHANNELS and "transparency" not in image.info


def _png(image: Image.Image) -> str:
    file = BytesIO()
    try:
        image.save(file, format="PNG", compress_level=1)
    except OSError as error:
        raise DataError(f"an image of mode {image.mode} cannot be saved as PNG ({error}); convert it to RGB") from error
    return base64.b64encode(file.getvalue()).decode()


class MediaReader:
    """Deserializes images, videos, audio and arrays of a document, within a limit of pixels."""

    def __init__(self, tensors: Mapping[str, Array], max_pixels: int) -> None:
        """Store the tensors without decoding them.

        Args:
            tensors: tensors of the request.
            max_pixels: maximum total pixels of images and values of audio and arrays; each counts as at least
                ``MIN_PIXELS``.
        """
        self._tensors = tensors
        self._pixels_left = max_pixels

    def image(self, image: WireImage) -> Image.Image:
        """Decode an image. Raises DataError if it is invalid or exceeds the limit."""
        return self._from_png(image) if isinstance(image, str) else self._from_array(self._tensor(image.tensor))

    def video(self, video: WireVideo) -> list[Image.Image]:
        """Decode the frames of a video. Raises DataError if it is invalid or exceeds the limit."""
        if isinstance(video, list):
            return [self._from_png(frame) for frame in video]
        array = self._tensor(video.tensor)
        if array.ndim < 3:
            raise DataError(f"a video must be (T, H, W) or (T, H, W, C), got {array.shape}")
        return [self._from_array(frame) for frame in array]

    def clip(self, clip: WireVideo | WireClip) -> Sequence[Image.Image]:
        """Decode a video of a prompt or of a turn: a ``Video`` if its frame rate is known. Raises as ``video``."""
        return Video(self.video(clip.frames), clip.frame_rate) if isinstance(clip, WireClip) else self.video(clip)

    def audio(self, audio: WireAudio) -> Audio:
        """Decode audio. Raises DataError if it is invalid or exceeds the limit."""
        return Audio(self.values(audio.values), audio.sampling_rate)

    def values(self, wire: WireValues) -> Tensor:
        """Decode an array. Raises DataError if it is invalid or exceeds the limit."""
        values = self._tensor(wire.tensor, np.float32) if wire.tensor is not None else _values(wire)
        self._spend(values.size)
        return torch.from_numpy(np.array(values, dtype=np.float32))

    def _tensor(self, name: str, dtype: type = np.uint8) -> Any:
        if name not in self._tensors:
            raise DataError(f"there is no tensor {name[:80]!r}")
        if self._tensors[name].dtype != dtype:
            raise DataError(f"such tensors must be {dtype.__name__}; {name[:80]!r} is {self._tensors[name].dtype}")
        return self._tensors[name]

    def _from_png(self, text: str) -> Image.Image:
        try:
            with Image.open(BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as image:
                self._spend(image.width * image.height)
                image.load()
                return image
        except (*UNREADABLE, binascii.Error) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"an image is not a PNG in base64: {type(error).__name__}: {error}") from None

    def _from_array(self, array: NDArray[np.uint8]) -> Image.Image:
        if 0 in array.shape or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (2, 3, 4)):
            raise DataError(f"an image must be (H, W) or (H, W, C) with C 2, 3 or 4, got {array.shape}")
        self._spend(array.shape[0] * array.shape[1])
        return Image.fromarray(np.ascontiguousarray(array))

    def _spend(self, pixels: int) -> None:
        self._pixels_left -= max(pixels, MIN_PIXELS)
        if self._pixels_left < 0:
            raise DataError("the images of the request exceed the pixel limit of the server; send smaller batches")


def _values(wire: WireValues) -> NDArray[np.float32]:
    """Decode values from base64."""
    try:
        flat = np.frombuffer(base64.b64decode(wire.values or "", validate=True), dtype="<f4")
        return flat.reshape(wire.shape or [-1])
    except (binascii.Error, ValueError) as error:
        raise DataError(f"audio or an array is not float32 in base64 of its shape: {error}") from None
