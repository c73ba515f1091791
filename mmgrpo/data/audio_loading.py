"""Loads the audio of a prompt: from a path, bytes, base64, an array with its rate, or the storage of a dataset."""

from __future__ import annotations

import base64
import binascii
import os
import wave
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmgrpo.data.image_loading import path_from_text, require_local_file
from mmgrpo.errors import DataError
from mmgrpo.maths.sounds import resampled
from mmgrpo.samples import Audio

FORMATS = ("wav", "w64", "aiff", "au", "flac", "mp3", "ogg", "mov", "matroska", "aac")
"""Supported formats, by ffmpeg's names: containers that include their audio and reference no other file."""
MAX_VALUES = 2**27
"""Maximal number of decoded values of an audio file: 25 minutes of 44.1 kHz stereo."""
FULL_SCALE = 2**15
FILE_KEYS = ("data", "bytes", "path")
"""Keys of a mapping that may contain the path or bytes of a file."""


def load_audio(sound: object) -> Audio:
    """The decoded audio; values outside of -1 to 1 are clipped, as players do.

    Args:
        sound: an ``Audio``; a path (``file://`` too); the bytes of a file (WAV, FLAC, MP3, Ogg, ...); their base64 text
            or ``data:`` URL; a mapping with ``array`` and ``sampling_rate``, with ``bytes`` or ``path``, as in
            datasets, or with base64 ``data``, as in OpenAI's API; or a torchcodec decoder. The shorter axis of a
            two-dimensional array is the channels; integers are 16-bit.

    Returns:
        The audio at its original sampling rate.

    Raises:
        DataError: it cannot be opened (the message has its path, if any), or is a URL; URLs are not fetched.
    """
    if isinstance(sound, Audio):
        return sound
    if isinstance(sound, Path):
        return _decode_file(require_local_file(str(sound)), str(sound))
    if isinstance(sound, bytes | bytearray | memoryview):
        return _decode_file(BytesIO(sound), f"the audio of {len(sound)} bytes")
    if isinstance(sound, str):
        data = None if os.path.exists(path_from_text(sound)) else decode_audio_text(sound)
        return _decode_file(require_local_file(sound), sound) if data is None else load_audio(data)
    if isinstance(sound, Mapping):
        if sound.get("array") is not None:
            return audio_from_array(sound["array"], sound.get("sampling_rate"))
        stored = next((sound[key] for key in FILE_KEYS if sound.get(key) is not None), None)
        if stored is not None:
            return load_audio(stored)
    get_all_samples: Any = getattr(sound, "get_all_samples", None)
    if callable(get_all_samples):
        samples: Any = get_all_samples()
        return audio_from_array(samples.data, samples.sample_rate)
    raise DataError(
        "audio must be a path, bytes, base64, an mmgrpo.types.Audio or a mapping with 'array' and 'sampling_rate', "
        f"'bytes' or 'path', got a {type(sound).__name__}"
    )


def audio_from_array(array: Any, rate: Any) -> Audio:
    """Audio from an array: (samples,), (channels, samples) or (samples, channels); the shorter axis is the channels.

    Raises: DataError for another shape or dtype, values that are not finite, or a missing rate.
    """
    try:
        values = torch.as_tensor(np.asarray(array) if not isinstance(array, Tensor) else array)
    except (TypeError, ValueError) as error:
        raise DataError(f"an audio array must hold numbers: {error}") from error
    if values.ndim not in (1, 2) or values.numel() == 0 or values.is_complex() or values.dtype == torch.bool:
        raise DataError(f"audio must be (samples,) or (channels, samples), got {tuple(values.shape)} {values.dtype}")
    scale = 1.0 if values.is_floating_point() else FULL_SCALE
    values = values.detach().cpu().float().reshape(-1, *values.shape[-1:]) / scale
    if not bool(values.isfinite().all()):
        raise DataError("the audio holds values that are not finite numbers; replace it or leave its row out")
    if values.shape[0] > values.shape[1]:
        values = values.T
    is_integer = isinstance(rate, np.integer) or (isinstance(rate, float) and rate.is_integer())
    rate_hz: Any = int(rate) if is_integer else rate
    return Audio(values.clamp(-1, 1).contiguous(), rate_hz)


def encode_wav(audio: Audio) -> bytes:
    """The audio as a 16-bit WAV file; ``load_audio`` restores it within half a quantization step, 1.5e-5."""
    levels_NC = (audio.values.T * FULL_SCALE).round().clamp(-FULL_SCALE, FULL_SCALE - 1)
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((len(audio.values), 2, audio.sampling_rate, 0, "NONE", "not compressed"))
        file.writeframes(levels_NC.numpy().astype("<i2").tobytes())
    return buffer.getvalue()


def resample_audio(audio: Audio, rate: int, *, mono: bool = False) -> Audio:
    """The audio at another sampling rate, in Hz; ``mono``: as one channel, the mean of its channels."""
    values = audio.values.mean(0, keepdim=True) if mono else audio.values
    return Audio(resampled(values, audio.sampling_rate, rate).clamp(-1, 1), rate)


def decode_audio_text(text: str) -> bytes | None:
    """The bytes of a file from a ``data:`` URL or a long base64 text; None for any other text.

    Raises: DataError for a ``data:`` URL that is cut off.
    """
    head, comma, data = text.partition(",") if text.startswith("data:") else ("", "", text)
    if not head and (len(text) < 64 or "://" in text):
        return None
    try:
        payload = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        if not head:
            return None
        raise DataError(f"the audio {text[:40]}... is not base64: {error}") from error
    if head and not (comma and payload):
        raise DataError(f"the audio {text[:40]} is a data: URL without data; is it cut off?")
    return payload


def require_audio(item: str | bytes, name: str) -> None:
    """Raises DataError unless a file, or its bytes, can be opened as audio; decodes nothing."""
    with _open_container(item if isinstance(item, str) else BytesIO(item), name):
        pass


def _decode_file(source: str | BytesIO, name: str) -> Audio:
    import av

    with _open_container(source, name) as container:
        stream = container.streams.audio[0]
        parts = []
        try:
            resampler = av.AudioResampler(format="fltp")
            for frame in _limit_values(container.decode(stream)):
                parts += [part.to_ndarray() for part in resampler.resample(frame)]
            parts += [part.to_ndarray() for part in resampler.resample(None)]
        except (av.FFmpegError, ValueError) as error:
            raise DataError(_unreadable_message(name, error)) from error
        if not parts:
            raise DataError(_unreadable_message(name, ValueError("it holds no samples")))
        return audio_from_array(torch.from_numpy(np.concatenate(parts, axis=1)), stream.rate)


def _limit_values(frames: Iterator[Any]) -> Iterator[Any]:
    """Yields the frames; raises ValueError once they have more than ``MAX_VALUES`` values together."""
    total = 0
    for frame in frames:
        total += frame.samples * frame.layout.nb_channels
        if total > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values")
        yield frame


def _open_container(source: str | BytesIO, name: str) -> Any:
    import av

    if isinstance(source, str) and not os.path.exists(source):
        raise DataError(f"{name[:200]} does not exist; audio must be a file of this machine")
    try:
        container = av.open(source, options={"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "file"})
    except (av.FFmpegError, ValueError, OSError) as error:
        raise DataError(_unreadable_message(name, error)) from error
    if not container.streams.audio:
        container.close()
        raise DataError(_unreadable_message(name, ValueError("it has no audio")))
    return container


def _unreadable_message(name: str, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"[:200]
    return f"{name[:200]} cannot be opened as audio ({reason}); replace it or leave its row out"
