"""A reward adjusted by the similarity of a sample to the rest of its group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Literal, final

import numpy as np
import regex
from numpy.typing import NDArray
from PIL import Image

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.extraction import MAX_TEXT_CHARS, require_choice
from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import within_groups

Rule = Literal["divide", "bonus"]
Similarity = Literal["ngrams", "pixels"]
Embed = Callable[[Sequence[Sample]], Any]
"""Returns a vector per sample, as an array of shape (samples, D) or a list of lists."""

SIDE = 32  # images are compared at 32 x 32 pixels

Matrix = NDArray[np.float64]
Features = Sequence[Any]


@final
class DiversityAdjusted:
    """Reward: an inner reward, decreased for samples similar to their group or increased for distinct ones.

    With s_ij in 0 to 1 the similarity of two members: ``rule: divide`` gives r_i / (1 + sum over j of s_ij);
    ``rule: bonus`` gives r_i + ``strength`` (1 - mean over j of s_ij), only where r_i > 0, so that incorrect distinct
        samples earn nothing. j runs over the other members with a score. None and failures (NaN) of the inner reward
        are kept.

    ``similarity: ngrams`` is the intersection over union of the sets of word n-grams of ``size``; ``pixels`` is 1 - the
    mean absolute difference of two images as RGB at 32 x 32 pixels, over 255, for videos the mean over the common
    frames. With ``embed``, a ``python:module:function`` that maps a list of samples to vectors, it is the cosine, at
    least 0. A sample without the compared output gets None.

    Example: ``{name: diversity_adjusted, of: {name: exact_match, extract: tag}}``.
    Settings: ``of``: the inner reward, by name or as a mapping with its settings, such as ``{name: exact_match,
    extract: tag}``.
    Range: ``divide``: 1 / G of the reward's range up to all of it; ``bonus``: up to ``strength`` more.
    Source: ``divide``: Chen et al. 2025 (DRA-GRPO), arXiv:2505.09655, with embeddings; its code sums over the complete
    group, including the sample itself (the 1 here). Deviation: cosines below 0 count as 0, so that the divisor is at
    least 1.
    ``bonus``: Hu et al. 2025 (DIVER), arXiv:2509.26209; there s is BLEU, or the bonus is that of ``unique_formulas``.
    Deviations: no bounds on the bonus and no end after 100 steps.
    Traps: it includes the reward, so do not add that reward separately. ``divide`` also shrinks negative rewards, so
    copies of a bad sample lose less: use it with non-negative rewards. Pixels do not represent content: two shifted
    copies differ, and all bright images are similar.
    """

    def __init__(
        self,
        of: Reward,
        rule: Rule = "divide",
        strength: float = 0.5,
        similarity: Similarity = "ngrams",
        size: int = 2,
        embed: Embed | None = None,
    ) -> None:
        if size < 1 or not (strength >= 0 and math.isfinite(strength)):
            raise ConfigError(f"DiversityAdjusted needs size >= 1 and strength >= 0, got {size} and {strength}")
        self.needs_values = needed_values(of)
        self.of = of
        self._rule: Rule = require_choice("DiversityAdjusted.rule", rule, Rule)
        self._strength = strength
        self._similarity: Similarity = require_choice("DiversityAdjusted.similarity", similarity, Similarity)
        self._size = size
        self._embed = embed

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        features, compare = self._features(samples)
        values = [None if feature is None else value for feature, value in zip(features, inner.values, strict=True)]

        def rule(rows: Sequence[int]) -> list[float]:
            rewards = [value for row in rows if is_score(value := values[row])]
            similarity_GG = similarities([features[row] for row in rows], compare)
            if self._rule == "divide":
                return divided(rewards, similarity_GG)
            return with_bonus(rewards, similarity_GG, self._strength)

        return inner.explain(within_groups(samples, values, rule))

    def _features(self, samples: Sequence[Sample]) -> tuple[Features, Callable[[Any, Any], float]]:
        if self._embed is not None:
            return list(_embedded(self._embed, samples)), cosine
        if self._similarity == "pixels":
            return [_small_frames(sample) for sample in samples], pixel_similarity
        return [None if s.text is None else ngrams(s.text, self._size) for s in samples], overlap


def divided(rewards: Sequence[float], similarity_GG: Matrix) -> list[float]:
    """r_i / (1 + sum of its similarities to the other members)."""
    others_G = similarity_GG.sum(1) - similarity_GG.diagonal()
    return [reward / (1 + float(sum_)) for reward, sum_ in zip(rewards, others_G, strict=True)]


def with_bonus(rewards: Sequence[float], similarity_GG: Matrix, strength: float) -> list[float]:
    """r_i + strength (1 - mean similarity to the others) where r_i > 0; a single member keeps its reward."""
    num = len(rewards) - 1
    others_G = similarity_GG.sum(1) - similarity_GG.diagonal()
    return [
        reward + strength * (1 - float(sum_) / num) if reward > 0 and num else reward
        for reward, sum_ in zip(rewards, others_G, strict=True)
    ]


def similarities(features: Features, compare: Callable[[Any, Any], float]) -> Matrix:
    """The symmetric (G, G) matrix of similarities; 1 on its diagonal."""
    matrix = np.eye(len(features))
    for i, j in combinations(range(len(features)), 2):
        matrix[i, j] = matrix[j, i] = compare(features[i], features[j])
    return matrix


def ngrams(text: str, size: int) -> frozenset[tuple[str, ...]]:
    """The word n-grams of a text, without case and punctuation; all its words as one where there are fewer."""
    words = regex.findall(r"[\w\p{M}]+", text[:MAX_TEXT_CHARS].casefold())
    return frozenset(tuple(words[i : i + size]) for i in range(max(len(words) - size, 0) + 1))


def overlap(first: frozenset[Any], second: frozenset[Any]) -> float:
    """Intersection over union of two sets that are not empty."""
    return len(first & second) / len(first | second)


def pixel_similarity(first: Sequence[Matrix], second: Sequence[Matrix]) -> float:
    """1 - mean absolute difference of the frames that both have, on a scale where black to white is 1."""
    return float(np.mean([1 - np.abs(a - b).mean() / 255 for a, b in zip(first, second, strict=False)]))


def cosine(first: Matrix, second: Matrix) -> float:
    """Cosine of two vectors, at least 0; 0 where one of them has no length."""
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return min(max(float(first @ second) / length, 0.0), 1.0) if length > 0 else 0.0


def _small_frames(sample: Sample) -> Sequence[Matrix] | None:
    frames = [sample.image] if sample.image is not None else list(sample.video or ())
    return [_small(frame) for frame in frames] or None


def _small(image: Image.Image) -> Matrix:
    return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)


def _embedded(embed: Embed, samples: Sequence[Sample]) -> Matrix:
    vectors = np.asarray(embed(samples), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(samples) or not np.isfinite(vectors).all():
        raise RewardError(
            f"DiversityAdjusted.embed must give a finite vector for each of {len(samples)} samples, got shape "
            f"{vectors.shape}"
        )
    return vectors
