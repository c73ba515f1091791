"""Real handwritten digits: data, rewards and diversity metrics of the smallest complete image job.

The 1,797 scans of the UCI "Optical Recognition of Handwritten Digits" test set, 8x8 pixels with 17 gray levels, ship
with scikit-learn, so nothing is downloaded. Every fit is single-threaded with a fixed seed: the same numbers each run.

Axes: N images or points, M points of a manifold, D pixels, K digits asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.distance import cdist, pdist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from mmgrpo.errors import DataError
from mmgrpo.system.interrupts import deferred
from mmgrpo.types import Example, Prompt, Sample

SIDE = 8
QUESTION = "which digit is shown ?"
PARTNER = (6, 7, 8, 5, 9, 3, 0, 1, 2, 4)  # what each digit is misread as; each is its partner's partner
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Pixels = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigitSplit:
    """A fixed split of the real digits; 80 % for training, 20 % held out from generator and verifier.

    Attributes:
        train: (1437, 8, 8) float32 in [-1, 1], ink is bright.
        train_labels: the digit of each training image.
        held_out: (360, 8, 8) float32 in [-1, 1].
        held_out_labels: the digit of each held-out image.
    """

    train: Pixels
    train_labels: Labels
    held_out: Pixels
    held_out_labels: Labels


class _Classifier(Protocol):
    def predict(self, X: Pixels, /) -> Any: ...


@lru_cache(maxsize=1)
def load_split() -> DigitSplit:
    """The stratified split with ``random_state=0``; the arrays are read-only and shared by every caller."""
    digits: Any = load_digits(return_X_y=True)
    levels, labels = digits
    images = (levels / 8 - 1).astype(np.float32).reshape(-1, SIDE, SIDE)
    parts = [
        np.asarray(part)
        for part in train_test_split(images, labels.astype(np.int64), test_size=0.2, random_state=0, stratify=labels)
    ]
    for part in parts:
        part.setflags(write=False)
    train, held_out, train_labels, held_out_labels = parts
    return DigitSplit(train=train, train_labels=train_labels, held_out=held_out, held_out_labels=held_out_labels)


def caption(digit: int) -> str:
    """The caption of a digit, for example ``a handwritten digit seven``."""
    return f"a handwritten digit {DIGIT_NAMES[digit]}"


def digit_prompts(per_digit: int = 1) -> list[Prompt]:
    """The ten captions, each with its column ``digit``; the list is repeated ``per_digit`` times."""
    return [Prompt(caption(digit), columns={"digit": digit}) for _ in range(per_digit) for digit in range(10)]


def mislabeled_examples(fraction: float = 0.45, seed: int = 0) -> list[Example]:
    """The training images with deliberately wrong captions for some, to warm up a generator to a low accuracy.

    ``round(fraction * N)`` captions are resampled uniformly over the ten digits, so a fraction of about ``1 - 0.9 *
    fraction`` is correct: 0.595 at the default. The column ``digit`` is the digit of the caption, ``true_digit`` that
    of the image.

    Raises: DataError if fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise DataError(f"fraction of redrawn captions must be in [0, 1], got {fraction}")
    split = load_split()
    N = len(split.train)
    rng = np.random.RandomState(seed)  # the legacy generator: its stream is frozen across numpy versions
    caption_digits = split.train_labels.copy()
    redrawn = rng.permutation(N)[: round(fraction * N)]
    caption_digits[redrawn] = rng.randint(0, 10, size=len(redrawn))
    return [
        Example(
            prompt=Prompt(caption(int(digit)), columns={"digit": int(digit), "true_digit": int(label)}),
            image=to_image(pixels),
        )
        for pixels, digit, label in zip(split.train, caption_digits, split.train_labels, strict=True)
    ]


def digit_questions() -> list[Prompt]:
    """Each training image with the question which digit it shows; the column ``answer`` is the digit as text."""
    split = load_split()
    return [_question(*item) for item in zip(split.train, split.train_labels, strict=True)]


def held_out_digit_questions() -> list[Prompt]:
    """The same question about the held-out images."""
    split = load_split()
    return [_question(*item) for item in zip(split.held_out, split.held_out_labels, strict=True)]


def misread_digits(fraction: float = 0.5, untagged: float = 0.3, seed: int = 0) -> list[Example]:
    """The training images with deliberately wrong answers for some, to warm up a model to a low accuracy.

    ``round(fraction * N)`` answers are the digit's ``PARTNER``, so a model that fits them is undecided between two
    digits; ``round(untagged * N)``, sampled independently, lack the answer tags. The column ``answer`` is the true
    digit.

    Raises: DataError if a share is outside [0, 1].
    """
    if not (0 <= fraction <= 1 and 0 <= untagged <= 1):
        raise DataError(f"fraction and untagged must be in [0, 1], got {fraction} and {untagged}")
    questions = digit_questions()
    N = len(questions)
    rng = np.random.RandomState(seed)  # the legacy generator: its stream is frozen across numpy versions
    misread = set(rng.permutation(N)[: round(fraction * N)].tolist())
    bare = set(rng.permutation(N)[: round(untagged * N)].tolist())
    answer_digits = [
        str(PARTNER[int(q.columns["answer"])] if i in misread else q.columns["answer"]) for i, q in enumerate(questions)
    ]
    return [
        Example(prompt=question, text=digit if i in bare else f"<answer>{digit}</answer>")
        for i, (question, digit) in enumerate(zip(questions, answer_digits, strict=True))
    ]


def to_image(pixels: Pixels) -> Image.Image:
    """An (H, W) array in [-1, 1] as an 8-bit gray image; the 17 levels of the real digits remain distinct."""
    return Image.fromarray(np.clip(np.rint((pixels + 1) * 127.5), 0, 255).astype(np.uint8))


def to_pixels(image: Image.Image) -> Pixels:
    """An 8-bit image of any size and mode as (8, 8) gray values in [-1, 1], by area average; alpha is ignored.

    Raises: DataError for modes of more than 8 bits, which PIL would clip silently.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise DataError(
            f"digits are scored on 8-bit images (L, RGB, RGBA, ...), got mode {image.mode}; rescale it to L"
        )
    gray = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(gray, dtype=np.float32) / 127.5 - 1


def coverage(points: Pixels, manifold: Pixels, neighbors: int) -> float | None:
    """Fraction of the points within some manifold point's distance to its k-th nearest neighbor, excluding itself.

    Shapes: (N, D), (M, D) -> a share in [0, 1]; None if M <= neighbors, where that distance does not exist.
    Source: Kynkaanniemi et al. 2019, arXiv:1904.06991, eq. 1-2.
    """
    if len(manifold) <= neighbors:
        return None
    radius_M = np.sort(cdist(manifold, manifold), axis=1)[:, neighbors]  # column 0 is the point itself
    return float((cdist(points, manifold) <= radius_M).any(axis=1).mean())


@lru_cache(maxsize=1)
def fit_verifier() -> MLPClassifier:
    """One hidden layer of 64, fitted on the training split; accuracy 0.978 on the held-out digits."""
    split = load_split()
    with threadpool_limits(1), deferred():  # fit swallows a Ctrl-C and returns its current state
        return MLPClassifier((64,), tol=5e-4, max_iter=300, random_state=0).fit(_flat(split.train), split.train_labels)


@lru_cache(maxsize=1)
def fit_neighbors() -> KNeighborsClassifier:
    """The three nearest images of the training split; accuracy 0.986 on the held-out digits."""
    split = load_split()
    return KNeighborsClassifier(3).fit(_flat(split.train), split.train_labels)


@lru_cache(maxsize=1)
def fit_judge() -> SVC:
    """An RBF support vector machine fitted on the held-out 20 %; accuracy 0.983 on the training digits."""
    split = load_split()
    with threadpool_limits(1):
        return SVC(C=10.0, kernel="rbf").fit(_flat(split.held_out), split.held_out_labels)


@final
class DigitVerifier:
    """Reward: 1.0 if a classifier of the training split predicts the digit in column ``digit``, else 0.0.

    A sample without an image, or a prompt without the column, is not scored (None).

    Range: 0 or 1.
    Source: designed for mmgrpo: a perceptron fitted on UCI digits, with accuracy 0.978 on the held-out ones.
    Traps: it ignores diversity: a generator with a single perfect seven scores 1.0, so monitor ``digit_recall`` and
    ``digit_spread`` as well.
    """

    def __init__(self) -> None:
        self._classifier = fit_verifier()

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return _agreement(self._classifier, samples)


@final
class HeldOutJudge:
    """Evaluation (``held_out_accuracy``): as ``DigitVerifier``, with another type of classifier fitted on other images.

    It shares neither model nor data with the verifier, so a gap that opens between the two is reward hacking.

    Range: 0 or 1.
    Source: designed for mmgrpo: a support vector machine fitted on the held-out UCI digits; accuracy 0.983 on the rest.
    Traps: if used for training, it is no longer held out. It also ignores diversity.
    """

    def __init__(self) -> None:
        self._classifier = fit_judge()

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return _agreement(self._classifier, samples)


@final
class Recall:
    """Evaluation: fraction of the held-out real digits on the manifold of the generated set.

    |{r : some g has |r - g| <= radius(g)}| / |real|, where radius(g) is the distance from g to its k-th nearest
    neighbor in the generated set, in pixel space. It is a set-level metric: every sample with an image gets the same
    value, the set is the samples of one call, and fewer than k + 1 images give None.

    Range: 0 to 1.
    Source: Kynkaanniemi et al. 2019, arXiv:1904.06991, eq. 1-2. Deviation: pixels instead of VGG features.
    Traps: it depends on the size of the set, so compare only sets of equal size; scattered noise covers everything, so
    read it together with ``digit_precision``. As a training reward it gives no advantage within a group.
    """

    def __init__(self, neighbors: int = 3) -> None:
        self._neighbors = _require_positive(neighbors)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        real = _flat(load_split().held_out)
        return _same_for_all(samples, lambda generated, _: coverage(real, generated, self._neighbors))


@final
class Precision:
    """Evaluation: fraction of the generated images on the manifold of the held-out real digits.

    As ``digit_recall`` with the two sets swapped; every sample with an image gets the same value.

    Range: 0 to 1.
    Source: Kynkaanniemi et al. 2019, arXiv:1904.06991, eq. 1-2. Deviation: pixels instead of VGG features.
    Traps: a repeated good image has precision 1: read it together with ``digit_recall``. It depends on the size of the
    set.
    """

    def __init__(self, neighbors: int = 3) -> None:
        self._neighbors = _require_positive(neighbors)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        real = _flat(load_split().held_out)
        return _same_for_all(samples, lambda generated, _: coverage(generated, real, self._neighbors))


@final
class StrokeSpread:
    """Evaluation: diversity of the images of one digit, relative to the real digits.

    mean_k d_k(generated) / mean_k d_k(held-out), with d_k the mean Euclidean distance over the pairs of digit k, and
    k over the digits that were requested at least twice. Samples without an image or the column ``digit`` get None, all
    others the same value.

    Range: 0 for one image per digit, 1 for the diversity of real writing; random black and white pixels have 2.5.
    Source: designed for mmgrpo.
    Traps: wrong digits inflate it: read it together with an accuracy.
    """

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return _same_for_all(samples, _relative_spread, needs_digit=True)


def _agreement(classifier: _Classifier, samples: Sequence[Sample]) -> list[float | None]:
    rows = [i for i, sample in enumerate(samples) if sample.image is not None and requested_digit(sample) is not None]
    values: list[float | None] = [None] * len(samples)
    if not rows:
        return values
    read_N = classifier.predict(_stack([samples[i] for i in rows]))
    for i, read in zip(rows, read_N, strict=True):
        values[i] = float(read == requested_digit(samples[i]))
    return values


def _same_for_all(
    samples: Sequence[Sample], measure: Callable[[Pixels, list[int | None]], float | None], *, needs_digit: bool = False
) -> list[float | None]:
    """One metric of the complete set, assigned to each of its samples."""
    counts = [s.image is not None and not (needs_digit and requested_digit(s) is None) for s in samples]
    chosen = [sample for sample, counted in zip(samples, counts, strict=True) if counted]
    value = measure(_stack(chosen), [requested_digit(sample) for sample in chosen]) if chosen else None
    return [value if counted else None for counted in counts]


def _relative_spread(generated: Pixels, digits: list[int | None]) -> float | None:
    split = load_split()
    digit_N = np.array(digits)
    classes = [k for k in range(10) if (digit_N == k).sum() >= 2]
    if not classes:
        return None
    real = _flat(split.held_out)
    generated_K = [pdist(generated[digit_N == k]).mean() for k in classes]
    real_K = [pdist(real[split.held_out_labels == k]).mean() for k in classes]
    return float(np.mean(generated_K) / np.mean(real_K))


def _question(pixels: Pixels, label: np.int64) -> Prompt:
    return Prompt(QUESTION, images=[to_image(pixels)], columns={"answer": str(label)})


def requested_digit(sample: Sample) -> int | None:
    """The column ``digit`` of the prompt; None without it. Raises DataError for anything but 0 to 9."""
    digit = sample.prompt.columns.get("digit")
    if digit is None:
        return None
    if isinstance(digit, bool) or not isinstance(digit, int | np.integer) or not 0 <= digit <= 9:
        raise DataError(f"column 'digit' must be an integer from 0 to 9, got {digit!r} of type {type(digit).__name__}")
    return int(digit)


def _stack(samples: Sequence[Sample]) -> Pixels:
    return np.stack([to_pixels(sample.image).reshape(-1) for sample in samples if sample.image is not None])


def _flat(images: Pixels) -> Pixels:
    return images.reshape(len(images), -1)


def _require_positive(neighbors: int) -> int:
    if neighbors < 1:
        raise DataError(f"neighbors must be at least 1, got {neighbors}")
    return neighbors
