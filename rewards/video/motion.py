"""Rewards for videos: motion, temporal consistency, and image rewards per frame.

Axes: F frames, Y X rows and columns of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..images.textures import gray
from ..models.checkpoints import Dtype, require_positive, resolve_dtype
from ..models.image_features import FeatureSource
from ..parsing.explanations import parts
from ..parsing.extraction import require_choice
from ..parsing.sample_images import evenly_spaced, to_rgb

MotionMeasure = Literal["direction", "magnitude"]
SteadyMeasure = Literal["pixels", "feature"]
Pool = Literal["mean", "min"]

SIDE = 128  # pixels of the longer side for motion estimation
BLOCK = 16  # pixels a side
REACH = 8  # maximum displacement of a block between frames, in pixels
STILL_GAIN = 0.98  # a block has moved if another position has a lower cost by this factor
PLAIN_STD = 2.0  # gray levels; blocks without detail cannot be tracked

COMPASS = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}


@final
class Motion:
    """Reward: direction or magnitude of motion, by block matching without a model.

    Frames are converted to gray and resized to 128 pixels on the longer side; every 16 x 16 block with detail is
    matched in the next frame, within 8 pixels. ``direction`` is the mean displacement along the target direction
    divided by the mean length of all displacements: 1 if all motion has that direction, -1 for the opposite.
    ``magnitude`` is the mean length per frame, in percent of the longer side; with ``target`` it is 1 - |magnitude -
    target| / target, at least 0.

    Settings: ``direction`` is right, left, up or down, or null for the value of ``column``; ``frames``: number of
    evenly spaced frames, null for all.
    Range: ``direction`` -1 to 1, 0 if nothing moves; ``magnitude`` 0 to about 8.8, or 0 to 1 with a target.
    Source: exhaustive block matching by the sum of absolute differences (Jain and Jain 1981); the rewards are designed
    for mmgrpo.
    Traps: a camera pan to the left moves everything right; displacements above 8 of 128 pixels per frame are not
    tracked, so more frames per second detect more; flicker and cuts look like undirected motion.
    """

    deterministic = True
    in_place_of_columns: ClassVar[Mapping[str, str | None]] = {"direction": None, "measure": "magnitude"}

    def __init__(
        self,
        measure: MotionMeasure = "direction",
        direction: str | None = None,
        column: str = "direction",
        target: float | None = None,
        frames: int | None = 16,
    ) -> None:
        self.measure: MotionMeasure = require_choice("Motion.measure", measure, MotionMeasure)
        if direction is not None and direction not in COMPASS:
            raise ConfigError(f"Motion.direction must be one of {', '.join(COMPASS)}, got {direction!r}")
        if target is not None and (measure == "direction" or not target > 0):
            raise ConfigError(f"Motion.target is a positive magnitude, for measure: magnitude; got {target}")
        self.direction = direction
        self.column = column
        self._target = target
        self._frames = None if frames is None else require_positive("Motion.frames", frames)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score | None:
        expected = self.direction or str(sample.prompt.columns.get(self.column))
        frames = _chosen(sample, self._frames)
        if len(frames) < 2 or (self.measure == "direction" and expected not in COMPASS):
            return None
        small = [_small(frame) for frame in frames]
        moves = np.concatenate([movement(current, next_frame) for current, next_frame in pairwise(small)])
        length = float(np.linalg.norm(moves, axis=1).mean()) if len(moves) else 0.0
        magnitude = 100 * length / SIDE
        right, down = (100 * moves.mean(0) / SIDE).tolist() if len(moves) else (0.0, 0.0)
        statistics = {"right": right, "down": down, "magnitude": magnitude, "moving_frac": _moving(moves)}
        if self.measure == "direction":
            along = float(np.dot((right, down), COMPASS[expected]))
            value = along / magnitude if magnitude else 0.0
        elif self._target is None:
            value = magnitude
        else:
            value = max(1 - abs(magnitude - self._target) / self._target, 0.0)
        return Score(value, parts(statistics))


@final
class TemporalConsistency:
    """Reward: similarity of the frames of a video.

    ``pixels`` is 1 - mean |difference| of adjacent frames, values 0 to 1. ``feature`` is the mean, over the frames
    after the first, of the average of the cosines with the first and with the previous frame, both at least 0, in the
    features of ``model``: DINO for the subject, CLIP for the background.

    Range: 0 to 1; real videos have above 0.9.
    Source: Huang et al. 2023 (VBench), arXiv:2311.17982, subject and background consistency.
    Traps: a static video gets 1: combine it with ``motion``.
    """

    deterministic = True

    def __init__(
        self,
        measure: SteadyMeasure = "pixels",
        model: str = "facebook/dino-vitb16",
        frames: int | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 32,
    ) -> None:
        self._measure: SteadyMeasure = require_choice("TemporalConsistency.measure", measure, SteadyMeasure)
        self._frames = None if frames is None else require_positive("TemporalConsistency.frames", frames)
        resolve_dtype("TemporalConsistency", dtype)
        size = require_positive("TemporalConsistency.batch_size", batch_size)
        self._source = FeatureSource(model=model, device=device, dtype=dtype, batch_size=size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        chosen = [_chosen(sample, self._frames) for sample in samples]
        return [self._score(frames) if len(frames) > 1 else None for frames in chosen]

    def _score(self, frames: list[Image.Image]) -> Score:
        """The mean over the frames after the first; the explanation has the least similar one, counted from 0."""
        alike = self._alike(frames)
        worst = int(np.argmin(alike))
        return Score(float(np.mean(alike)), parts({"least": alike[worst], "at_frame": worst + 1}))

    def _alike(self, frames: list[Image.Image]) -> list[float]:
        if self._measure == "pixels":
            values = [np.asarray(frame, dtype=np.float64) / 255 for frame in frames]
            return [float(1 - np.abs(a - b).mean()) for a, b in pairwise(values)]
        features_FD = self._source.features(frames)
        first_F = (features_FD[1:] * features_FD[0]).sum(-1).clamp(min=0)
        before_F = (features_FD[1:] * features_FD[:-1]).sum(-1).clamp(min=0)
        return ((first_F + before_F) / 2).tolist()


@final
class FrameMean:
    """Reward: mean (or minimum) of an image reward over frames of the video.

    Example: ``{name: frame_mean, of: {name: pick_score, batch_size: 8}, frames: 4}``.
    Settings: ``of`` is the image reward, by name or with its settings; ``frames``: number of evenly spaced frames
    including first and last; ``pool``: mean or min. Frames without a score are excluded; a video without scored frames
    gets None; a failure (NaN) on a frame fails the video.

    Range: that of the image reward.
    Source: frame-wise image rewards, as used by DanceGRPO, arXiv:2505.07818, and Flow-GRPO for video models.
    Traps: it ignores time: a slide show of good images scores as well as a video. All frames of all samples are scored
    in one call, so ``batch_size`` counts frames.
    """

    def __init__(self, of: Reward, frames: int = 4, pool: Pool = "mean") -> None:
        if not callable(of):
            raise ConfigError(f"FrameMean.of must be a reward (in YAML its name or a mapping), got {of!r:.60}")
        self.of = of
        self._frames = require_positive("FrameMean.frames", frames)
        self._pool: Pool = require_choice("FrameMean.pool", pool, Pool)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        chosen = [_chosen(sample, self._frames) for sample in samples]
        frame_samples = [
            replace(sample, image=frame, video=None)
            for sample, frames in zip(samples, chosen, strict=True)
            for frame in frames
        ]
        scores = iter(self.of(frame_samples) if frame_samples else ())
        return [self._pooled([next(scores) for _ in frames]) for frames in chosen]

    def _pooled(self, scores: Sequence[Any]) -> float | Score | None:
        finite = {f"frame {i}": float(score) for i, score in enumerate(scores) if score is not None}
        if not finite or not all(math.isfinite(score) for score in finite.values()):
            return math.nan if finite else None
        value = min(finite.values()) if self._pool == "min" else sum(finite.values()) / len(finite)
        return Score(value, parts(finite))


def movement(frame_HW: NDArray[Any], next_HW: NDArray[Any]) -> NDArray[Any]:
    """Displacement of each block with detail between two gray frames, right and down, in pixels.

    Shapes: (H, W), (H, W) -> (blocks, 2); blocks whose search window exceeds the frame are omitted. A block counts as
    static unless another position fits clearly better.
    """
    rows, columns = ((edge - 2 * REACH) // BLOCK for edge in frame_HW.shape)
    if rows < 1 or columns < 1:
        return np.zeros((0, 2))
    area = (slice(REACH, REACH + rows * BLOCK), slice(REACH, REACH + columns * BLOCK))
    inner_HW = frame_HW[area]
    offsets = sorted(
        ((dx, dy) for dx in range(-REACH, REACH + 1) for dy in range(-REACH, REACH + 1)),
        key=lambda offset: offset[0] ** 2 + offset[1] ** 2,
    )  # shortest first, so that ties prefer the shortest
    costs = np.stack([_per_block(np.abs(_shifted(next_HW, area, offset) - inner_HW)) for offset in offsets])
    best_YX = costs.argmin(0)
    moved_YX = costs.min(0) < STILL_GAIN * costs[0]
    best_offsets = np.array(offsets)[np.where(moved_YX, best_YX, 0)]
    detail_YX = np.sqrt(np.maximum(_per_block(inner_HW**2) - _per_block(inner_HW) ** 2, 0)) > PLAIN_STD
    return best_offsets[detail_YX].astype(np.float64)


def _moving(moves: NDArray[Any]) -> float:
    """Fraction of moving blocks."""
    return float(moves.any(axis=1).mean()) if len(moves) else 0.0


def _shifted(frame_HW: NDArray[Any], area: tuple[slice, slice], offset: tuple[int, int]) -> NDArray[Any]:
    (dx, dy), (rows, columns) = offset, area
    return frame_HW[rows.start + dy : rows.stop + dy, columns.start + dx : columns.stop + dx]


def _per_block(values_HW: NDArray[Any]) -> NDArray[Any]:
    height, width = values_HW.shape
    return values_HW.reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK).mean((1, 3))


def _small(frame: Image.Image) -> NDArray[Any]:
    scale = SIDE / max(frame.size)
    edges = [max(round(edge * scale), 1) for edge in frame.size]
    return gray(frame if max(frame.size) == SIDE else frame.resize((edges[0], edges[1]), Image.Resampling.BOX))


def _chosen(sample: Sample, count: int | None) -> list[Image.Image]:
    frames = list(sample.video or ())
    return [to_rgb(frames[i]) for i in evenly_spaced(len(frames), count)]
