"""Audio as input of a processor: mono, at the rate of its feature extractor, under its argument name."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

from mmgrpo.data.audio_loading import load_audio, resample_audio
from mmgrpo.errors import DataError

ARGUMENTS = ("audio", "audios")
EXTRACTORS = ("feature_extractor", "audio_processor")
FEATURES = ("feature", "audio")


def is_audio_tensor(name: str) -> bool:
    """Whether a processor's tensor of this name describes audio rather than tokens."""
    return any(word in name for word in FEATURES)


def rate_of(processor: Any) -> int | None:
    """The sampling rate, in Hz, of a processor's feature extractor; None for a processor without audio input."""
    rates = [getattr(getattr(processor, name, None), "sampling_rate", None) for name in EXTRACTORS]
    return next((rate for rate in rates if isinstance(rate, int)), None)


def audio_arguments(processor: Any, sounds: Sequence[Any]) -> dict[str, Any]:
    """Arguments of a processor's call for the audio of one prompt, in any form that ``load_audio`` opens.

    Raises: DataError for audio that cannot be opened, and for a processor without audio input.
    """
    rate, parameters = rate_of(processor), signature(processor.__call__).parameters
    name = next((name for name in ARGUMENTS if name in parameters), None)
    if rate is None or name is None:
        raise DataError(
            f"{type(processor).__name__} takes no audio; use one with audio input (Qwen2-Audio, Qwen2.5-Omni, ...), "
            "or remove the audios"
        )
    values = [resample_audio(load_audio(sound), rate, mono=True).values[0].numpy() for sound in sounds]
    return {name: values, "audio_kwargs": {"sampling_rate": rate}}
