"""Rewards from pixels without a model or data, for any image policy."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import final

from PIL import Image, ImageStat

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample


@final
class JpegSize:
    """Reward: size of the image as a JPEG, in kilobytes; ``sign=-1`` rewards small files, ``sign=1`` large ones.

    Every image is saved as RGB, so gray and color images are on one scale; alpha is removed. A sample without an image
    is not scored (None).

    Range: below 0; with ``sign: 1`` above.
    Units: kB of 1000 bytes.   Raises: ConfigError for another sign or a quality outside 1..95.
    Source: Black et al. 2023 (DDPO), arXiv:2305.13301, sec. 5.1: compressibility and incompressibility.
    Traps: the best image is a single color, or with ``sign: 1`` noise. Its scale grows with the resolution: normalize
    by group.
    """

    def __init__(self, sign: int = -1, quality: int = 95) -> None:
        if sign not in (-1, 1):
            raise ConfigError(f"JpegSize.sign must be -1 (reward small files) or 1 (reward large ones), got {sign}")
        if not 1 <= quality <= 95:
            raise ConfigError(f"JpegSize.quality must be in 1..95, got {quality}")
        self._sign = sign
        self._quality = quality

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [None if sample.image is None else self._sign * self._kilobytes(sample.image) for sample in samples]

    def _kilobytes(self, image: Image.Image) -> float:
        buffer = BytesIO()
        image.convert("RGB").save(buffer, format="JPEG", quality=self._quality)
        return buffer.tell() / 1000


@final
class Brightness:
    """Reward: how close the image's mean luminance is to a target, ``1 - |mean(L) / 255 - target|``.

    L is PIL's ITU-R 601 gray value. The simplest signal: for smoke tests, and to check whether a policy learns. For a
    video the score is the mean over its frames; a sample without either is not scored (None).

    Range: 0 to 1.
    Units: ``target`` from 0 (black) to 1 (white).   Raises: ConfigError for a target outside [0, 1].
    Source: designed for mmgrpo.
    Traps: the best image is a uniform shade of gray, independent of the prompt; ``python -m benchmarks.hacking`` shows
    it.
    """

    def __init__(self, target: float = 1.0) -> None:
        if not 0 <= target <= 1:
            raise ConfigError(f"Brightness.target must be in [0, 1], got {target}")
        self._target = target

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float | None:
        frames = [sample.image] if sample.image is not None else list(sample.video or ())
        if not frames:
            return None
        mean = sum(ImageStat.Stat(frame.convert("L")).mean[0] for frame in frames) / (255 * len(frames))
        return 1 - abs(mean - self._target)
