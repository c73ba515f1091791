"""Edits of real handwritten digits by instruction: examples, verifier and held-out evaluation.

Every edit is a function of the pixels of the source, so the correct result is known, and a changed digit is detected.
The digits and their split are those of ``mmgrpo.examples.digits``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import final

import numpy as np
from mmgrpo.examples.digits import SIDE, DigitSplit, Labels, Pixels, load_split, to_image, to_pixels
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from mmgrpo.data.image_loading import load_image
from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt, Sample

BLANK = -1.0


def _moved(pixels: Pixels) -> Pixels:
    return np.concatenate([pixels[:, 2:], np.full_like(pixels[:, :2], BLANK)], axis=1)


def _bold(pixels: Pixels) -> Pixels:
    """Each pixel becomes the maximum of itself and its four neighbors."""
    framed = np.pad(pixels, 1, constant_values=BLANK)
    return np.max(
        [framed[1:-1, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:], framed[:-2, 1:-1], framed[2:, 1:-1]], axis=0
    )


EDITS: Mapping[str, Callable[[Pixels], Pixels]] = {
    "mirror the digit": lambda pixels: pixels[:, ::-1],
    "invert the digit": lambda pixels: -pixels,
    "move the digit left": _moved,
    "make the digit bold": _bold,
}
"""The function of each instruction on (8, 8) pixels in [-1, 1]."""


def edit_prompts() -> list[Prompt]:
    """Each training digit with each instruction; the columns are ``edit``, the instruction, and ``digit``."""
    return [_edit_prompt(*row) for row in _rows(load_split().train, load_split().train_labels)]


def held_out_edit_prompts(per_edit: int = 90) -> list[Prompt]:
    """Held-out digits, equally many for each instruction, without repetition.

    Raises: DataError if there are not enough digits.
    """
    split, num_edits = load_split(), per_edit * len(EDITS)
    if not 0 < num_edits <= len(split.held_out):
        raise DataError(f"per_edit must be from 1 to {len(split.held_out) // len(EDITS)}, got {per_edit}")
    names = list(EDITS)
    sources = zip(split.held_out[:num_edits], split.held_out_labels[:num_edits], strict=True)
    return [_edit_prompt(source, digit, names[n % len(names)]) for n, (source, digit) in enumerate(sources)]


def misinstructed_edits(fraction: float = 0.5, seed: int = 0) -> list[Example]:
    """Edits of the training digits with deliberately wrong instructions for some, for a low initial accuracy.

    ``round(fraction * N)`` instructions are resampled uniformly, so a fraction of about ``1 - 0.75 * fraction`` is
    correct.

    Raises: DataError if fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise DataError(f"fraction of redrawn instructions must be in [0, 1], got {fraction}")
    rows, names = _rows(load_split().train, load_split().train_labels), list(EDITS)
    rng = np.random.RandomState(seed)  # the legacy generator: its stream is frozen across numpy versions
    instructions = [edit for _, _, edit in rows]
    for row in rng.permutation(len(rows))[: round(fraction * len(rows))]:
        instructions[row] = names[rng.randint(len(names))]
    return [
        Example(prompt=_edit_prompt(source, digit, instruction), image=to_image(EDITS[edit](source)))
        for (source, digit, edit), instruction in zip(rows, instructions, strict=True)
    ]


@final
class EditVerifier:
    """Reward: 1.0 if the image equals the edit in column ``edit`` of the source within ``tolerance``, else 0.0.

    Among all edits of the source, and the source itself, the requested one must be the nearest, within the tolerance: a
    root mean square of pixels in [-1, 1]. A sample without image, source or column is not scored.

    Range: 0 or 1.
    Source: designed for mmgrpo: the edits are functions of the pixels, so the correct result is known.
    Traps: an image at the tolerance scores as much as a perfect one.
    """

    def __init__(self, tolerance: float = 0.4) -> None:
        if not tolerance > 0:
            raise DataError(f"the tolerance of an edit must be above 0, got {tolerance}")
        self._tolerance = tolerance

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float | None:
        edit, distances = sample.prompt.columns.get("edit"), _distances(sample)
        if edit is None or distances is None:
            return None
        return float(_nearest(distances) == edit and distances[edit] <= self._tolerance)


@final
class HeldOutEditJudge:
    """Evaluation: 1.0 if the requested edit is the nearest and a classifier still predicts the source's digit, else
    0.0.

    The classifier, an RBF support vector machine for each edit, was fitted on edited training digits; it uses only the
    image, neither source nor tolerance. The columns are ``edit`` and ``digit``.

    Range: 0 or 1.
    Source: designed for mmgrpo.
    Traps: digits that the classifier misreads count as wrong, about 2 % of the true edits.
    """

    def __init__(self) -> None:
        self._readers = {edit: _reader(edit) for edit in EDITS}

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float | None:
        edit, digit, distances = (
            sample.prompt.columns.get("edit"),
            sample.prompt.columns.get("digit"),
            _distances(sample),
        )
        if edit is None or digit is None or distances is None or sample.image is None:
            return None
        read = self._readers[edit].predict(to_pixels(sample.image).reshape(1, -1))[0]
        return float(_nearest(distances) == edit and read == digit)


@lru_cache(maxsize=len(EDITS))
def _reader(edit: str) -> SVC:
    split: DigitSplit = load_split()
    edited = np.stack([EDITS[edit](source) for source in split.train]).reshape(-1, SIDE * SIDE)
    with threadpool_limits(1):
        return SVC(C=10.0, kernel="rbf").fit(edited, split.train_labels)


def _rows(sources: Pixels, digits: Labels) -> list[tuple[Pixels, int, str]]:
    return [(source, int(digit), edit) for source, digit in zip(sources, digits, strict=True) for edit in EDITS]


def _edit_prompt(source: Pixels, digit: int, edit: str) -> Prompt:
    return Prompt(edit, images=(to_image(source),), columns={"edit": edit, "digit": int(digit)})


def _distances(sample: Sample) -> dict[str, float] | None:
    """Root mean squares between the image and each edit of its source, and the source, under ``""``."""
    if sample.image is None or len(sample.prompt.images) == 0:
        return None
    source, generated = to_pixels(load_image(sample.prompt.images[0])), to_pixels(sample.image)
    targets = {"": source, **{name: edit(source) for name, edit in EDITS.items()}}
    return {name: float(np.sqrt(((generated - target) ** 2).mean())) for name, target in targets.items()}


def _nearest(distances: Mapping[str, float]) -> str:
    return min(distances, key=lambda name: distances[name])
