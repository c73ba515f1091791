"""N-gram scores of a text against references: BLEU, ROUGE-L, and CIDEr's cosine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rapidfuzz.distance import LCSseq

Words = Sequence[str]
Grams = Counter[tuple[str, ...]]

CIDER_SPREAD = 6.0


def grams(words: Words, n: int) -> Grams:
    """Counts of the n-grams of a text."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu(words: Words, references: Sequence[Words], order: int = 4) -> float:
    """Geometric mean of the clipped precisions of 1- to ``order``-grams, times the brevity penalty.

    Orders above the length of the text are omitted. The k-th order without a match counts as 1 / (2^k total).

    Args:
        words: words of the text.
        references: the words of each reference.
        order: maximum n.

    Returns:
        0 to 1.

    Source: Papineni et al. 2002; smoothing 3 of Chen and Cherry 2014, with sentences as in sacrebleu's sentence_bleu.
    """
    logs: list[float] = []
    missed = 1.0
    for n in range(1, min(order, len(words)) + 1):
        counts = grams(words, n)
        most = Counter[tuple[str, ...]]()
        for reference in references:
            most |= grams(reference, n)
        hits = (counts & most).total()
        if n == 1 and not hits:
            return 0.0
        missed *= 1.0 if hits else 2.0
        logs.append(math.log((hits or 1.0 / missed) / counts.total()))
    if not logs:
        return 0.0
    nearest = min((abs(len(reference) - len(words)), len(reference)) for reference in references)[1]
    return math.exp(min(0.0, 1 - nearest / len(words)) + sum(logs) / len(logs))


def rouge_l(words: Words, reference: Words) -> float:
    """F1 of the longest common subsequence: 2 LCS / (words of both).

    Args:
        words: words of the text.
        reference: words of the reference.

    Returns:
        0 to 1; 0 if either is empty.

    Source: Lin 2004; F1 as in rouge-score.
    """
    if not words or not reference:
        return 0.0
    return 2 * LCSseq.similarity(words, reference) / (len(words) + len(reference))


def document_frequencies(documents: Sequence[Sequence[Words]], order: int = 4) -> Counter[tuple[str, ...]]:
    """Number of documents, each a set of texts, that contain each 1- to ``order``-gram."""
    return Counter(
        gram
        for texts in documents
        for gram in {gram for words in texts for n in range(1, order + 1) for gram in grams(words, n)}
    )


def cider(
    words: Words,
    references: Sequence[Words],
    frequencies: Mapping[tuple[str, ...], int] | None = None,
    documents: int = 1,
    order: int = 4,
) -> float:
    """Mean over references and n = 1 to ``order`` of the clipped TF-IDF cosine, as in CIDEr-D.

    sum over n-grams of min(a, b) b / (|a| |b|), with a and b the counts in text and reference times log(documents /
    frequency), times exp(-(difference of the lengths)^2 / (2 * 6^2)).

    Args:
        words: words of the text.
        references: the words of each reference.
        frequencies: document frequency of each n-gram; None: equal weights.
        documents: number of documents.
        order: maximum n.

    Returns:
        0 to 1.

    Source: Vedantam et al. 2015, arXiv:1411.5726, sec. 4 and 7. Deviation: not times 10; without frequencies no idf.
    """

    def tfidf(text: Words, n: int) -> dict[tuple[str, ...], float]:
        counts = grams(text, n)
        if frequencies is None:
            return {gram: float(count) for gram, count in counts.items()}
        return {gram: count * math.log(documents / max(frequencies.get(gram, 0), 1)) for gram, count in counts.items()}

    total = 0.0
    for n in range(1, order + 1):
        weights = tfidf(words, n)
        for reference in references:
            nearness = math.exp(-((len(words) - len(reference)) ** 2) / (2 * CIDER_SPREAD**2))
            total += nearness * _clipped_cosine(weights, tfidf(reference, n))
    return min(1.0, total / (order * len(references)))


def _clipped_cosine(candidate: Mapping[tuple[str, ...], float], reference: Mapping[tuple[str, ...], float]) -> float:
    lengths = math.hypot(*candidate.values()) * math.hypot(*reference.values())
    shared = sum(
        min(value, reference[gram]) * reference[gram] for gram, value in candidate.items() if gram in reference
    )
    return shared / lengths if lengths else 0.0
