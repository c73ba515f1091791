"""Moving handwritten digits: clips, captions and rewards of the smallest complete video job.

A clip has three frames of 16 x 16 pixels in which an 8 x 8 scan of ``digits`` moves by four pixels per frame, from one
edge to the other. Verifier and judge share neither images, nor a classifier, nor the method to locate the digit.

Axes: N clips, F frames, H = W = 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, final

import numpy as np
from mmgrpo.examples.digits import (
    DIGIT_NAMES,
    SIDE,
    fit_judge,
    fit_neighbors,
    fit_verifier,
    load_split,
    requested_digit,
    to_image,
)
from numpy.typing import NDArray
from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt, Sample

CANVAS = 16
STEP = 4
NUM_FRAMES = (CANVAS - SIDE) // STEP + 1
DIRECTIONS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
"""Direction -> displacement of the digit in rows and columns."""
MIDDLE = (CANVAS - SIDE) // 2
LITTLE = 1e-9  # ink
TIMID = 1.0  # minimum displacement over the clip, in pixels

Clip = NDArray[np.float32]


def moving_caption(digit: int, direction: str) -> str:
    """The caption of a clip, for example ``seven moving left``."""
    return f"{DIGIT_NAMES[digit]} moving {direction}"


def moving_digit_prompts() -> list[Prompt]:
    """The forty captions, each with its columns ``digit`` and ``direction``."""
    return [_prompt(digit, direction) for direction, digit in product(DIRECTIONS, range(10))]


def mislabeled_moving_digits(directions: float = 0.35, digits: float = 0.1, seed: int = 0) -> list[Example]:
    """The training images moved in each direction, with deliberately wrong captions for some.

    A fraction ``directions`` of the directions and, independently, ``digits`` of the digits are resampled uniformly, so
    a fraction of about (1 - 0.75 directions) (1 - 0.9 digits) is correct: 0.67 at the default. The columns ``digit``
    and ``direction`` belong to the caption; ``true_digit`` and ``true_direction`` to the clip.

    Raises: DataError if a share is outside [0, 1].
    """
    if not (0 <= directions <= 1 and 0 <= digits <= 1):
        raise DataError(f"shares of redrawn captions must be in [0, 1], got {directions} and {digits}")
    split, direction_names = load_split(), list(DIRECTIONS)
    combinations = list(product(range(len(split.train)), range(len(direction_names))))
    rng = np.random.RandomState(seed)  # the legacy generator: its stream is frozen across numpy versions
    redrawn = [
        set(rng.permutation(len(combinations))[: round(share * len(combinations))].tolist())
        for share in (directions, digits)
    ]
    guesses = [rng.randint(0, choices, len(combinations)).tolist() for choices in (len(direction_names), 10)]
    examples = []
    for index, (n, way) in enumerate(combinations):
        digit = int(split.train_labels[n])
        caption_way, caption_digit = (
            guess[index] if index in replaced else truth
            for truth, replaced, guess in zip((way, digit), redrawn, guesses, strict=True)
        )
        prompt = _prompt(
            caption_digit, direction_names[caption_way], true_digit=digit, true_direction=direction_names[way]
        )
        examples.append(
            Example(prompt, video=[to_image(frame) for frame in moving(split.train[n], direction_names[way])])
        )
    return examples


def moving(pixels: Clip, direction: str) -> Clip:
    """The clip of a digit that moves: (8, 8) in [-1, 1] -> (F, H, W) on black."""
    clip = np.full((NUM_FRAMES, CANVAS, CANVAS), -1, dtype=np.float32)
    for frame, (top, left) in zip(clip, _path(direction), strict=True):
        frame[top : top + SIDE, left : left + SIDE] = pixels
    return clip


@final
class MovingDigitVerifier:
    """Reward: fraction of frames with the requested digit at the expected position, weighted by the share of ink there;
    0 if the ink moves in another direction.

    The columns are ``digit`` and ``direction``. Frames are classified twice, with half the weight each: by the
    perceptron of ``digit_verifier`` and by the three nearest images of its split, at the position of a digit that moves
    as requested. The ink moves as requested if its center moves farther in that direction than across from the first to
    the last frame, and by at least a pixel. A sample without a video, or a prompt without a column, is not scored
    (None).

    Range: 0 to 1, at most 1/3 per frame.
    Source: designed for mmgrpo: UCI digits; the accuracies of the classifiers on held-out digits are 0.978 and 0.986.
    Traps: it ignores diversity. Without the share of ink policies learn to add separate pieces, which move
    the center of the ink (measured: 0.87 by such a verifier, 0.67 by the judge); with only the perceptron, they learn
    shapes that only a perceptron classifies as digits (0.90 and 0.74).
    """

    def __init__(self) -> None:
        self._classifiers = (fit_verifier(), fit_neighbors())

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return _score_videos(samples, self._score)

    def _score(self, clip: Clip, digit: int, direction: str) -> float:
        if _moved_to(_center(clip[-1]) - _center(clip[0])) != direction:
            return 0.0
        cuts = np.stack([_cut(frame, *corner) for frame, corner in zip(clip, _path(direction), strict=True)])
        share = _ink(cuts).sum(1) / np.maximum(_ink(clip).sum((1, 2)), LITTLE)
        read = np.mean([classifier.predict(cuts) == digit for classifier in self._classifiers], axis=0)
        return float(np.mean(read * share))


@final
class MovingDigitJudge:
    """Evaluation (``held_out_accuracy``): whether most frames show the requested digit and it moves as requested.

    The columns are ``digit`` and ``direction``. Like ``moving_digit_verifier`` with another method: the digit is the
    window most similar to the held-out images, classified by the support vector machine of ``held_out_judge``, which is
    fitted on those; its displacement maximizes the overlap of the first and the last frame.

    Range: 0 or 1.
    Source: designed for mmgrpo: a support vector machine fitted on the held-out UCI digits; accuracy 0.983 on the rest.
    Traps: if used for training, it is no longer held out. It also ignores diversity.
    """

    def __init__(self) -> None:
        self._classifier = fit_judge()
        self._mean = load_split().held_out.mean(0)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return _score_videos(samples, self._score)

    def _score(self, clip: Clip, digit: int, direction: str) -> float:
        if _moved_to(_displacement(clip[0], clip[-1])) != direction:
            return 0.0
        cuts = [_cut(frame, *max(_corners(), key=lambda corner: self._likeness(frame, corner))) for frame in clip]
        return float((self._classifier.predict(np.stack(cuts)) == digit).mean() > 0.5)

    def _likeness(self, frame: Clip, corner: tuple[int, int]) -> float:
        """Overlap of the frame's ink with the mean digit at this position."""
        return float(((_cut(frame, *corner) + 1) * (self._mean.reshape(-1) + 1)).sum())


def _path(direction: str) -> list[tuple[int, int]]:
    """The upper left corner of the digit in each frame."""
    down, right = DIRECTIONS[direction]
    ways = [(number - NUM_FRAMES // 2) * STEP for number in range(NUM_FRAMES)]
    return [(MIDDLE + down * way, MIDDLE + right * way) for way in ways]


def _center(frame: Clip) -> NDArray[np.float64]:
    """Row and column of the center of the ink; the middle of an empty frame."""
    ink = _ink(frame) + LITTLE
    return np.array([(ink.sum(1 - axis) * np.arange(CANVAS)).sum() / ink.sum() for axis in (0, 1)])


def _ink(pixels: Clip) -> NDArray[np.float64]:
    """Ink of each pixel, 0 to 1."""
    return np.clip((pixels.astype(np.float64) + 1) / 2, 0, 1)


def _displacement(first: Clip, last: Clip) -> NDArray[np.float64]:
    """Displacement in rows and columns that maximizes the overlap of the first frame with the last."""
    before, after = (np.fft.rfft2(frame + 1, s=(2 * CANVAS, 2 * CANVAS)) for frame in (first, last))
    overlap = np.fft.irfft2(before.conj() * after)
    shift = np.array(np.unravel_index(overlap.argmax(), overlap.shape), dtype=np.float64)
    return np.where(shift > CANVAS, shift - 2 * CANVAS, shift)


def _moved_to(way: NDArray[np.float64]) -> str | None:
    """The direction of a displacement in rows and columns; None if it is too small."""
    if np.abs(way).max() < TIMID:
        return None
    return max(DIRECTIONS, key=lambda name: float(way @ np.array(DIRECTIONS[name])))


def _corners() -> list[tuple[int, int]]:
    places = range(CANVAS - SIDE + 1)
    return list(product(places, places))


def _cut(frame: Clip, top: int, left: int) -> Clip:
    return frame[top : top + SIDE, left : left + SIDE].reshape(-1)


def _score_videos(samples: Sequence[Sample], score: Callable[[Clip, int, str], float]) -> list[float | None]:
    values: list[float | None] = []
    for sample in samples:
        digit, direction = requested_digit(sample), sample.prompt.columns.get("direction")
        if direction is not None and direction not in DIRECTIONS:
            raise DataError(f"column 'direction' must be one of {', '.join(DIRECTIONS)}, got {direction!r}")
        if sample.video is None or digit is None or direction is None:
            values.append(None)
        else:
            values.append(score(_pixels(sample.video), digit, direction))
    return values


def _pixels(video: Sequence[Image.Image]) -> Clip:
    """Frames of any size and mode as (F, H, W) gray values in [-1, 1], by area average."""
    if len(video) != NUM_FRAMES:
        raise DataError(f"moving digits are scored on clips of {NUM_FRAMES} frames, got {len(video)}")
    frames = [frame.convert("L").resize((CANVAS, CANVAS), Image.Resampling.BOX) for frame in video]
    return np.stack([np.asarray(frame, dtype=np.float32) / 127.5 - 1 for frame in frames])


def _prompt(digit: int, direction: str, **columns: Any) -> Prompt:
    return Prompt(moving_caption(digit, direction), columns={"digit": digit, "direction": direction, **columns})
