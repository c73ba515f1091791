"""Rewards and alerts from pixels without a model: color, sharpness, grid artifacts.

Axes: H W height and width, K frequencies along one axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor
from scipy.ndimage import laplace, uniform_filter, uniform_filter1d

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import parts
from ..parsing.sample_images import sample_frames

Gray = NDArray[Any]

MIN_BLOCKS_EDGE = 256  # pixels: shorter edges have too few steps to distinguish blocks from chance

WHITE_D65 = (0.95047, 1.0, 1.08883)
SRGB_TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)


@final
class Color:
    """Reward: fraction of the pixels that are perceptually close to a color.

    A pixel counts if its distance in CIELAB (CIE 1976, white D65) is at most ``tolerance``; a distance of about 2 is
    just visible, red and orange are about 60 apart. The color is ``color``, or the value of ``column``: a CSS name,
    "#ff8800" or "rgb(255, 136, 0)". For a video the score is the mean over its frames; a row without a valid color is
    not scored.

    Range: 0 to 1; with ``target`` it is 1 - |share - target|.
    Source: CIE 15:2004, sec. 8.2.1; sRGB after IEC 61966-2-1.
    Traps: the best image has only that color, unless ``target`` is set.
    """

    deterministic = True
    in_place_of_columns: ClassVar[Mapping[str, str | None]] = {"color": None}

    def __init__(
        self,
        color: str | None = None,
        column: str = "color",
        tolerance: float = 30.0,
        target: float | None = None,
    ) -> None:
        if color is not None and _rgb(color) is None:
            raise ConfigError(f"Color.color must be a CSS name or #rrggbb, got {color!r}")
        if not tolerance > 0:
            raise ConfigError(f"Color.tolerance must be positive, got {tolerance}")
        if target is not None and not 0 < target <= 1:
            raise ConfigError(f"Color.target must be in (0, 1], got {target}")
        self.color = color
        self.column = column
        self._tolerance = tolerance
        self._target = target

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float | None:
        target_color = _rgb(sample.prompt.columns.get(self.column) if self.color is None else self.color)
        frames = sample_frames(sample)
        if target_color is None or not frames:
            return None
        goal = lab(np.array(target_color, dtype=np.float64))
        near = [np.linalg.norm(lab(np.asarray(frame, np.float64)) - goal, axis=-1) for frame in frames]
        share = float(np.mean([(distance <= self._tolerance).mean() for distance in near]))
        return share if self._target is None else 1 - abs(share - self._target)


@final
class Sharpness:
    """Reward: log10(1 + variance of the Laplacian of the gray values), which falls as an image blurs.

    With ``size`` the longer side of the image is first resized to that length, so that resolutions are comparable. For
    a video the score is the mean over its frames.

    Range: 0 (one color) to about 5 (noise), for gray values 0 to 255 and the four-neighbor Laplacian.
    Source: Pech-Pacheco et al. 2000, "Diatom autofocusing in brightfield microscopy".
    Traps: noise and grids score highest: monitor ``grid_artifacts`` as well.
    """

    deterministic = True

    def __init__(self, size: int | None = 512) -> None:
        if size is not None and size < 3:
            raise ConfigError(f"Sharpness.size must be at least 3 pixels or null, got {size}")
        self._size = size

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        frame_values = [[self._sharpness(frame) for frame in sample_frames(sample)] for sample in samples]
        return [float(np.mean(values)) if values else None for values in frame_values]

    def _sharpness(self, image: Image.Image) -> float:
        if self._size is not None and max(image.size) != self._size:
            scale = self._size / max(image.size)
            edges = [max(round(edge * scale), 1) for edge in image.size]
            image = image.resize((edges[0], edges[1]), Image.Resampling.LANCZOS)
        return float(np.log10(1 + laplace(gray(image)).var()))


@final
class GridArtifacts:
    """Reward: share of the spectrum that is a grid of one period; an alert for artifacts of broken generators.

    ``lattice``: the power spectrum of the image minus its local mean (5 x 5) along rows and along columns. The excess
        over neighboring frequencies at the harmonics of ``period`` is summed and divided by the total power.
        ``blocks``: the same for the magnitude of pixel differences, averaged over rows or columns: a lattice is
        uniform, while block seams and upscaled pixels occur at regular distances. The score is the larger of the two,
        in the direction where it is larger. Divisors of the period are included: 16 detects grids of 16, 8, 4 and 2
        pixels, the patches of latent diffusion models. For a video the score is the mean over its frames; edges shorter
        than eight periods use the largest halved period that fits, edges below 16 pixels are not scored; blocks need at
        least 256 pixels.

    Range: 0 to 1, higher is worse; photographs stay below 0.03 and white noise below 0.1, JPEG of quality 50 has 0.3 to
    0.6, upscaled pixels above 0.5. Use a negative weight to penalize, 0 to monitor.
    Source: peaks of up-sampling in the spectrum, after Zhang et al. 2019 (AutoGAN), arXiv:1907.06515, sec. 3; steps at
    the seams of blocks after Wang, Sheikh and Bovik 2002, "No-reference perceptual quality assessment of JPEG
    compressed images"; the measure itself is designed for mmgrpo.
    Traps: images of real grids (windows, tiles, evenly spaced text) also score high, and so do images upscaled by an
    integer factor: monitor its increase over training.
    """

    deterministic = True

    def __init__(self, period: int = 16) -> None:
        if period < 2 or period & (period - 1):
            raise ConfigError(f"GridArtifacts.period must be a power of two, 2 or more pixels, got {period}")
        self._period = period

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        frame_shares = [
            [grid_shares(gray(frame), self._period) for frame in sample_frames(sample)] for sample in samples
        ]
        return [self._scored([shares for shares in frames if shares]) for frames in frame_shares]

    def _scored(self, frames: Sequence[Mapping[str, float]]) -> Score | None:
        if not frames:
            return None
        value = float(np.mean([max(shares.values()) for shares in frames]))
        return Score(value, parts({name: float(np.mean([shares[name] for shares in frames])) for name in frames[0]}))


def grid_shares(gray_HW: Gray, period: int) -> dict[str, float]:
    """The grid shares of an image for a period, in the direction where they are largest: ``lattice`` and ``blocks``.

    An entry is missing if both edges are too short: 16 pixels for the lattice, 64 for blocks.
    """
    fine_HW = gray_HW - uniform_filter(gray_HW, 5)
    both = (gray_HW, gray_HW.T)
    shares = {
        "lattice": [_line_share(fine, period) for fine in (fine_HW, fine_HW.T)],
        "blocks": [_line_share(_edges(values), period) for values in both if values.shape[1] >= MIN_BLOCKS_EDGE],
    }
    finite_shares = {
        name: [share for share in shares_of_name if share is not None] for name, shares_of_name in shares.items()
    }
    return {name: max(shares_of_name) for name, shares_of_name in finite_shares.items() if shares_of_name}


def _edges(gray_HW: Gray) -> Gray:
    """Mean absolute difference to the next pixel over the rows, minus its local mean.

    Shapes: (H, W) -> (1, W), the last step is repeated. Absolute values are used because steps at block seams have both
    signs, so the spectrum of the image has no peak there.
    """
    step_W = np.abs(np.diff(gray_HW, axis=1)).mean(0)
    step_W = np.append(step_W, step_W[-1])
    return (step_W - uniform_filter1d(step_W, 5))[None]


def lab(rgb: Gray) -> Gray:
    """sRGB values 0 to 255 as CIELAB under D65. Shapes: (..., 3) -> (..., 3)."""
    value = rgb / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    relative = linear @ np.array(SRGB_TO_XYZ).T / np.array(WHITE_D65)
    bent = np.where(relative > (6 / 29) ** 3, np.cbrt(relative), relative * (29 / 6) ** 2 / 3 + 4 / 29)
    x, y, z = np.moveaxis(bent, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def gray(image: Image.Image) -> Gray:
    """The ITU-R 601 gray values, 0 to 255."""
    return np.asarray(image.convert("L"), dtype=np.float64)


def _line_share(fine_HW: Gray, period: int) -> float | None:
    while fine_HW.shape[1] < 8 * period and period > 2:
        period //= 2
    width = fine_HW.shape[1] - fine_HW.shape[1] % period
    if width < 8 * period:
        return None
    power_K = (np.abs(np.fft.rfft(fine_HW[:, :width], axis=1)) ** 2).mean(0)
    power_K[0] = 0
    total = float(power_K.sum())
    if total <= 1e-9:
        return 0.0
    lines = [k * width // period for k in range(1, period // 2 + 1)]
    return sum(max(float(power_K[k] - _floor(power_K, k)), 0.0) for k in lines) / total


def _floor(power_K: Gray, k: int) -> float:
    around = [i for i in (*range(k - 3, k), *range(k + 1, k + 4)) if 0 < i < len(power_K)]
    return float(np.max(power_K[around]))


@lru_cache(maxsize=256)
def _named(color: str) -> tuple[int, ...] | None:
    try:
        return ImageColor.getrgb(color)[:3]
    except ValueError:
        return None


def _rgb(color: Any) -> tuple[int, ...] | None:
    return _named(color) if isinstance(color, str) and len(color) < 100 else None
