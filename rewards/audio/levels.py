"""Rewards from audio levels: loudness, silence, clipping, length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.sounds import level_db
from mmgrpo.types import Audio, Sample, Score

from ..parsing.explanations import parts
from ..parsing.extraction import finite
from ..parsing.scalars import plain_value

FRAME_S = 0.02
FULL = 1 - 2**-12  # of full scale: clipping of a 12-bit converter


@final
class Loudness:
    """Reward: closeness of the audio level to a target, 1 - |level - target| / tolerance, at least 0.

    The level is the root mean square of all channels in decibels of full scale: a full sine has -3. A sample without
    audio is not scored.

    Range: 0 to 1.
    Units: ``target_db`` and ``tolerance_db`` in dB of full scale.
    Source: designed for mmgrpo.
    Traps: it is not perceptual loudness (ITU-R BS.1770 weights frequencies); noise at the target level scores 1.
    """

    deterministic = True

    def __init__(self, target_db: float = -20.0, tolerance_db: float = 20.0) -> None:
        if tolerance_db <= 0 or target_db > 0:
            raise ConfigError(
                f"Loudness: target_db is at most 0 and tolerance_db above 0, got {target_db} and {tolerance_db}"
            )
        self._target = target_db
        self._tolerance = tolerance_db

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.audio is None else self._score(sample.audio) for sample in samples]

    def _score(self, audio: Audio) -> Score:
        level = level_db(audio.values)
        return Score(max(0.0, 1 - abs(level - self._target) / self._tolerance), parts({"level_db": level}))


@final
class Clipping:
    """Reward: minus the fraction of audio values at full scale (clipping).

    A sample without audio is not scored.

    Range: -1 to 0.
    Source: designed for mmgrpo.
    Traps: silence never clips: combine it with ``loudness`` or ``sounding``.
    """

    deterministic = True

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        sounds = [sample.audio for sample in samples]
        return [None if audio is None else -float((audio.values.abs() >= FULL).float().mean()) for audio in sounds]


@final
class Sounding:
    """Reward: fraction of the audio that is not silent, in steps of 20 ms.

    A step counts if the level of any channel is above ``threshold_db``. A sample without audio is not scored.

    Range: 0 to 1.
    Units: ``threshold_db`` in dB of full scale, as in ``loudness``.
    Source: designed for mmgrpo.
    Traps: hum and hiss count as sound; pauses of music and speech count as silence.
    """

    deterministic = True

    def __init__(self, threshold_db: float = -50.0) -> None:
        self._threshold = _threshold("Sounding", threshold_db)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        sounds = [sample.audio for sample in samples]
        return [None if audio is None else float(_audible_F(audio, self._threshold).float().mean()) for audio in sounds]


@final
class SoundLength:
    """Reward: closeness of the audio length to a target, 1 - |length - target| / target, at least 0.

    The length is measured from the beginning to the last 20 ms step above ``threshold_db``. The target is the number in
    ``column``, or ``seconds`` if a row has none; without either a sample is not scored.

    Range: 0 to 1.
    Units: ``seconds`` and the column in seconds; ``threshold_db`` in dB of full scale.
    Source: designed for mmgrpo.
    Traps: a click at the target time is enough: combine it with ``sounding``.
    """

    deterministic = True
    in_place_of_columns: ClassVar[Mapping[str, str | None]] = {"seconds": None}

    def __init__(self, column: str = "duration_s", seconds: float | None = None, threshold_db: float = -50.0) -> None:
        if seconds is not None and seconds <= 0:
            raise ConfigError(f"SoundLength.seconds must be above 0, got {seconds}")
        self.column = column
        self.seconds = seconds
        self._threshold = _threshold("SoundLength", threshold_db)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score | None:
        column_seconds = finite(plain_value(sample.prompt.columns.get(self.column)))
        target = self.seconds if column_seconds is None else column_seconds
        if sample.audio is None or target is None or target <= 0:
            return None
        audible_F = _audible_F(sample.audio, self._threshold)
        last = int(audible_F.nonzero().max()) + 1 if bool(audible_F.any()) else 0
        length = min(last * FRAME_S, sample.audio.duration_s)
        return Score(max(0.0, 1 - abs(length - target) / target), parts({"length_s": length, "target_s": target}))


def _audible_F(audio: Audio, threshold_db: float) -> Tensor:
    """Time steps above a level in any channel; (F,) bool."""
    size = max(1, round(FRAME_S * audio.sampling_rate))
    steps = audio.values.split(size, dim=1)
    power_F = torch.stack([step.double().square().mean(1).max() for step in steps])
    return power_F > 10 ** (threshold_db / 10)


def _threshold(owner: str, threshold_db: float) -> float:
    if threshold_db >= 0:
        raise ConfigError(f"{owner}.threshold_db must be below 0, full scale, got {threshold_db}")
    return threshold_db
