"""Rewards without references: agreement of an answer with the answers of its group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import excerpt
from ..parsing.extraction import Extract, extract_answer, normalize_text, require_choice, require_extract
from .grouping import groups

MAX_NAMED = 8  # number of tied winners in an explanation

Mode = Literal["agreement", "share"]
Entails = Callable[[Sample, Sample], float]
"""Returns the probability, or a bool, that the first sample entails the second."""


@final
class MajorityVote:
    """Reward: whether a sample has the majority answer of its group, or the fraction of the group with its answer.

    Answers are compared after the normalization of ``exact_match``. ``mode: agreement`` is 1 for the most frequent
    answer and 0 for others; each of k tied answers gets 1 / k, the mean over random tie-breaking. ``mode: share`` is
    the count of the answer divided by the number of samples. A sample without an answer does not vote, scores 0 and
    counts as a member; a sample without text gets None and does not count.

    ``entropy`` w subtracts w H / log k from every score of a group, where H is the entropy of its k distinct answers: 0
    for unanimous answers, w if all are equally frequent.

    The explanation has the answer, the most frequent ones and the counts.

    Settings: ``extract`` and ``ignore_case`` as in ``exact_match``.
    Range: 0 to 1, minus ``entropy``.
    Source: agreement: Zuo et al. 2025 (TTRL), arXiv:2504.16084; share and entropy: Singh et al. 2025 (TTRV),
    arXiv:2510.06783, whose code has ``mode: share`` and ``entropy: 0.75``, and divides H by log k as here. Deviations:
    ties, where TTRL's code takes the first answer; samples without an answer do not vote, while both codes count them
    as another answer.
    Traps: it rewards agreement, not correctness: if most samples are wrong it reinforces the error, so monitor a
    held-out accuracy. The entropy term is equal for all members, so advantages that subtract the group mean cancel it.
    Values are not compared ("7.0" is not "7"): use ``semantic_clusters`` with a custom judge.
    """

    def __init__(
        self, mode: Mode = "agreement", extract: Extract = "none", ignore_case: bool = True, entropy: float = 0.0
    ) -> None:
        if not (entropy >= 0 and math.isfinite(entropy)):
            raise ConfigError(f"MajorityVote.entropy must be at least 0, got {entropy}")
        self._mode: Mode = require_choice("MajorityVote.mode", mode, Mode)
        self._extract: Extract = require_extract("MajorityVote.extract", extract)
        self._ignore_case = ignore_case
        self._entropy = entropy

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        return among_writers(samples, self._scores)

    def _scores(self, members: Sequence[Sample]) -> list[Score | None]:
        votes = [answer_of(member, self._extract, ignore_case=self._ignore_case) for member in members]
        values = agreement(votes) if self._mode == "agreement" else shares(votes)
        disorder = relative_entropy(votes)
        counts: Counter[str | None] = Counter(vote for vote in votes if vote is not None)
        of_all = {"voters": len(votes), "answers": len(counts), "relative_entropy": round(disorder, 4)}
        majority = [excerpt(vote) for vote in winners(votes)[:MAX_NAMED]]
        return [
            Score(
                value - self._entropy * disorder,
                {"parsed": excerpt(vote), "majority": majority, "parts": {"votes": counts[vote], **of_all}},
            )
            for vote, value in zip(votes, values, strict=True)
        ]


@final
class SemanticClusters:
    """Reward: fraction of the group with the same meaning as a sample, by answers or by an entailment judge.

    Without ``entails`` two samples are equivalent if their answers are equal after the normalization of
    ``exact_match``. With ``entails``, a ``python:module:function`` of two samples that returns the probability (or a
    bool) that the first entails the second, they are equivalent if each entails the other with more than ``threshold``;
    clusters are the connected components. The judge is not called for pairs that are already connected, so at most G (G
    - 1) times.

    A group whose semantic entropy, -sum over its clusters of share log share, is outside ``entropy_min`` to
    ``entropy_max`` gets None. A sample without an answer forms its own cluster; one without text gets None and does not
    count.

    The explanation has the answer (without ``entails``), the size of its cluster and the entropy of the group.

    Settings: ``extract`` and ``ignore_case`` as in ``exact_match``; they have no effect with ``entails``.
    Range: 1 / G to 1.   Units: entropies in nats, 0 to log G.
    Source: Zhang et al. 2025 (EMPO), arXiv:2504.05812. Deviations: connected components instead of clusters grown from
    the first member, so the order of the members does not matter; a group outside the bounds gets None and a sample
    without an answer 1 / G, where the code gives 0 (for mathematics it excludes only groups of G different answers:
    ``entropy_max`` just below log G).
    Traps: as ``majority_vote``, it rewards agreement, not correctness; short, vague answers agree most. The cosine of
    sentence embeddings distinguishes topics, not statements: with all-MiniLM-L6-v2 paraphrases have 0.63 to 0.97, and
    opposites ("closed", "open"; "7", "8"; who chases whom) 0.71 to 0.99; use an entailment model.
    """

    def __init__(
        self,
        entails: Entails | None = None,
        threshold: float = 0.5,
        extract: Extract = "none",
        ignore_case: bool = True,
        entropy_min: float = 0.0,
        entropy_max: float = math.inf,
    ) -> None:
        if not 0 <= threshold < 1 or entropy_min > entropy_max:
            raise ConfigError(
                f"SemanticClusters needs threshold in [0, 1) and entropy_min <= entropy_max, "
                f"got {threshold}, {entropy_min} and {entropy_max}"
            )
        self._entails = entails
        self._threshold = threshold
        self._extract: Extract = require_extract("SemanticClusters.extract", extract)
        self._ignore_case = ignore_case
        self._entropy_min = entropy_min
        self._entropy_max = entropy_max

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        return among_writers(samples, self._scores)

    def _scores(self, members: Sequence[Sample]) -> list[Score | None]:
        answers, clusters = self._clusters(members)
        disorder, counts = entropy(clusters), Counter(clusters)
        if not self._entropy_min <= disorder <= self._entropy_max:
            return [None] * len(members)
        of_all = {"voters": len(clusters), "clusters": len(counts), "entropy": round(disorder, 4)}
        return [
            Score(share, answer | {"parts": {"votes": counts[cluster], **of_all}})
            for answer, cluster, share in zip(answers, clusters, shares(clusters), strict=True)
        ]

    def _clusters(self, members: Sequence[Sample]) -> tuple[list[dict[str, Any]], Sequence[Hashable]]:
        """The explanation and the cluster of each member."""
        if self._entails is not None:
            return [{}] * len(members), connected(members, self._same)
        answers = [answer_of(member, self._extract, ignore_case=self._ignore_case) for member in members]
        clusters = [(index,) if answer is None else answer for index, answer in enumerate(answers)]
        return [{"parsed": excerpt(answer)} for answer in answers], clusters

    def _same(self, first: Sample, second: Sample) -> bool:
        return all(
            self._entails is not None and float(self._entails(a, b)) > self._threshold
            for a, b in ((first, second), (second, first))
        )


def answer_of(sample: Sample, extract: Extract, *, ignore_case: bool) -> str | None:
    """A sample's normalized answer; None where it has none, or one that is empty or too long."""
    answer = None if sample.text is None else extract_answer(sample.text, extract)
    return None if answer is None else normalize_text(answer, ignore_case=ignore_case) or None


def among_writers(
    samples: Sequence[Sample], rule: Callable[[Sequence[Sample]], list[Score | None]]
) -> list[Score | None]:
    """Apply a rule to the members of each group that have a text; None for the others."""
    scores: list[Score | None] = [None] * len(samples)
    for rows in groups(samples).values():
        text_rows = [row for row in rows if samples[row].text is not None]
        for row, score in zip(text_rows, rule([samples[row] for row in text_rows]), strict=True):
            scores[row] = score
    return scores


def winners(votes: Sequence[str | None]) -> list[str]:
    """The most frequent votes, in order."""
    counts = Counter(vote for vote in votes if vote is not None)
    most = max(counts.values(), default=0)
    return sorted(vote for vote, count in counts.items() if count == most)


def agreement(votes: Sequence[str | None]) -> list[float]:
    """1 / k for votes that are one of the k most frequent, 0 for others and for None."""
    most = winners(votes)
    return [1 / len(most) if vote in most else 0.0 for vote in votes]


def shares(votes: Sequence[Hashable | None]) -> list[float]:
    """Count of each vote divided by the number of voters; 0 for None."""
    counts = Counter(votes)
    return [0.0 if vote is None else counts[vote] / len(votes) for vote in votes]


def entropy(votes: Sequence[Hashable | None]) -> float:
    """Entropy of the distribution of votes, in nats; 0 without votes."""
    counts = Counter(vote for vote in votes if vote is not None)
    total = sum(counts.values())
    return sum(count / total * math.log(total / count) for count in counts.values())


def relative_entropy(votes: Sequence[Hashable | None]) -> float:
    """Entropy of the votes divided by its maximum for that number of distinct votes; 0 for unanimous votes."""
    num = len({vote for vote in votes if vote is not None})
    return entropy(votes) / math.log(num) if num > 1 else 0.0


def connected(members: Sequence[Sample], same: Callable[[Sample, Sample], bool]) -> list[Hashable]:
    """Cluster index of each member: the connected components of the equivalence graph."""
    cluster = list(range(len(members)))
    for i, first in enumerate(members):
        for j in range(i):
            if cluster[i] != cluster[j] and same(members[j], first):
                source, target = cluster[i], cluster[j]
                cluster = [target if number == source else number for number in cluster]
    return list(cluster)
