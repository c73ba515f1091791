"""Rewards for videos: how things move, how steady frames are, and any image reward frame by frame.

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

from ..images.textures import grey
from ..models.checkpoints import Dtype, require_positive, resolve_dtype
from ..models.image_features import FeatureSource
from ..parsing.explanations import parts
from ..parsing.extraction import require_choice
from ..parsing.sample_images import as_rgb, evenly_spaced

MotionMeasure = Literal["direction", "magnitude"]
SteadyMeasure = Literal["pixels", "feature"]
Pool = Literal["mean", "min"]

SIDE = 128  # pixels of the longer side that motion is measured at
BLOCK = 16  # pixels a side
REACH = 8  # pixels that a block may move from frame to frame
STILL_GAIN = 0.98  # a block has moved if somewhere else fits at least so much better than where it was
PLAIN_STD = 2.0  # gray levels; a block without detail cannot be followed

COMPASS = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}


@final
class Motion:
    """Reward: which way, or how much, the image moves, by block matching and without a model.

    Frames are turned gray and resized so that the longer side is 128 pixels; every block of 16 x 16 with detail in it
    is looked for in the next frame, up to 8 pixels away each way. ``direction`` is the mean movement along the wanted
    direction divided by the mean length of all movements: 1 if everything that moves moves that way, -1 if the other
    way. ``magnitude`` is the mean length per frame, in percent of the longer side; with ``target`` it is
    1 - |magnitude - target| / target, at least 0.

    Settings: ``direction`` is right, left, up or down, or null for what ``column`` of the row says; ``frames`` looks at
    so many frames at even distances, null at all.
    Range: ``direction`` -1 to 1, 0 if nothing moves; ``magnitude`` 0 to about 8.8, or 0 to 1 with a target.
    Source: exhaustive block matching by the sum of absolute differences (Jain and Jain 1981); the rewards are ours.
    Traps: a camera that pans left moves everything right; what moves more than 8 of 128 pixels from frame to frame is
    not followed, so more frames per second see more; flicker and cuts look like movement without direction.
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
        wanted = self.direction or str(sample.prompt.columns.get(self.column))
        frames = _chosen(sample, self._frames)
        if len(frames) < 2 or (self.measure == "direction" and wanted not in COMPASS):
            return None
        small = [_small(frame) for frame in frames]
        moves = np.concatenate([movement(current, next_frame) for current, next_frame in pairwise(small)])
        length = float(np.linalg.norm(moves, axis=1).mean()) if len(moves) else 0.0
        magnitude = 100 * length / SIDE
        right, down = (100 * moves.mean(0) / SIDE).tolist() if len(moves) else (0.0, 0.0)
        statistics = {"right": right, "down": down, "magnitude": magnitude, "moving_frac": _moving(moves)}
        if self.measure == "direction":
            along = float(np.dot((right, down), COMPASS[wanted]))
            value = along / magnitude if magnitude else 0.0
        elif self._target is None:
            value = magnitude
        else:
            value = max(1 - abs(magnitude - self._target) / self._target, 0.0)
        return Score(value, parts(statistics))


@final
class TemporalConsistency:
    """Reward: how alike the frames of a video are.

    ``pixels`` is 1 - mean |difference| of neighboring frames, values 0 to 1. ``feature`` is the mean, over the frames
    after the first, of half the cosine with the first frame plus half that with the one before, both at least 0, in the
    features of ``model``: DINO for the subject, CLIP for the background.

    Range: 0 to 1; real videos lie above 0.9.
    Source: Huang et al. 2023 (VBench), arXiv:2311.17982, subject and background consistency.
    Traps: a still image gets 1: pair it with ``motion``.
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
        """The mean over the frames after the first; the explanation has the least like of them, counted from 0."""
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
    """Reward: any image reward, asked about frames of the video, and the mean (or the least) of what it says.

    Example: ``{name: frame_mean, of: {name: pick_score, batch_size: 8}, frames: 4}``.
    Settings: ``of`` is the reward, by name or with its settings; ``frames`` how many are asked about, at even
    distances, first and last among them; ``pool`` mean or min. Frames that the reward does not score are left out; a
    video of which it scores none gets None, one on which it fails (NaN) fails.

    Range: that of the reward.
    Source: frame-wise image rewards as DanceGRPO, arXiv:2505.07818, and Flow-GRPO train video models with.
    Traps: it does not see time: a slide show of good images is as good as a film. All frames of all samples go to the
    reward in one call, so its ``batch_size`` counts frames.
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
    """How far each block with detail has moved from one gray frame to the next, right and down, in pixels.

    Shapes: (H, W), (H, W) -> (blocks, 2); blocks whose search would leave the frame are left out. A block stays where
    it was unless another place fits clearly better.
    """
    rows, columns = ((edge - 2 * REACH) // BLOCK for edge in frame_HW.shape)
    if rows < 1 or columns < 1:
        return np.zeros((0, 2))
    area = (slice(REACH, REACH + rows * BLOCK), slice(REACH, REACH + columns * BLOCK))
    inner_HW = frame_HW[area]
    offsets = sorted(
        ((dx, dy) for dx in range(-REACH, REACH + 1) for dy in range(-REACH, REACH + 1)),
        key=lambda offset: offset[0] ** 2 + offset[1] ** 2,
    )  # the shortest first, so that of equal fits the shortest is taken
    costs = np.stack([_per_block(np.abs(_shifted(next_HW, area, offset) - inner_HW)) for offset in offsets])
    best_YX = costs.argmin(0)
    moved_YX = costs.min(0) < STILL_GAIN * costs[0]
    best_offsets = np.array(offsets)[np.where(moved_YX, best_YX, 0)]
    detail_YX = np.sqrt(np.maximum(_per_block(inner_HW**2) - _per_block(inner_HW) ** 2, 0)) > PLAIN_STD
    return best_offsets[detail_YX].astype(np.float64)


def _moving(moves: NDArray[Any]) -> float:
    """Share of the blocks that moved."""
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
    return grey(frame if max(frame.size) == SIDE else frame.resize((edges[0], edges[1]), Image.Resampling.BOX))


def _chosen(sample: Sample, count: int | None) -> list[Image.Image]:
    frames = list(sample.video or ())
    return [as_rgb(frames[i]) for i in evenly_spaced(len(frames), count)]
