"""Rewards for short text answers: exact match, yes or no, classes, label sets and edit distance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import (
    MAX_ANSWER_CHARS,
    Extract,
    extract_answer,
    label_key,
    label_words,
    normalize_text,
    require_choice,
    require_extract,
    words,
)
from ..parsing.reference_values import accepted_texts, find_reference_error, score_against_reference, shortest_notation

Unit = Literal["characters", "words"]

_TRUTH: Mapping[str, bool] = {"yes": True, "true": True, "no": False, "false": False}


@final
class ExactMatch:
    r"""Reward: 1 if the answer equals the reference after normalization, else 0.

    Normalization: Unicode NFKC, runs of whitespace as one space, stripped, and case folded unless ``ignore_case`` is
        false. ``extract`` selects the answer: ``none`` the complete text, ``tag`` the last ``<answer>..</answer>``,
        ``boxed`` the last ``\boxed{..}``, ``line`` the last non-blank line. Thoughts, ``<think>..</think>`` or an
        unclosed ``<think>``, are removed first. ``{tag: NAME}`` selects the last ``<NAME>..</NAME>`` anywhere in the
        text, so several rewards can each read a part of one text. The reference, in ``column``, is a text, a number, or
        a list of accepted ones.

    Example: ``{name: exact_match, extract: tag}``.
    Range: 0 or 1.
    Source: exact match after normalization, as in SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250). Deviation: articles
    and punctuation are kept.
    Traps: punctuation matters ("7." is not "7"); values are not compared ("7.0" is not "7": use ``number``). An answer
    of more than 10,000 characters scores 0.
    """

    def __init__(self, column: str = "answer", extract: Extract = "none", ignore_case: bool = True) -> None:
        self.column = column
        self._extract: Extract = require_extract("ExactMatch.extract", extract)
        self._ignore_case = ignore_case

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("exact_match", samples, self.column, accepted_texts, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(value, accepted_texts, "a text, a number, or a list of them")

    def _score(self, text: str, accepted: list[str]) -> Score:
        answer = extract_answer(text, self._extract)
        plain = None if answer is None else normalize_text(answer, ignore_case=self._ignore_case)
        equal = plain is not None and plain in [normalize_text(a, ignore_case=self._ignore_case) for a in accepted]
        return Score(float(equal), comparison(answer, accepted))


@final
class YesNo:
    """Reward: 1 if the answer is yes or no as in the reference, else 0.

    The first word decides if it is yes or no; otherwise the answer must contain exactly one of the two as a complete
    word. ``true`` and ``false`` are equivalent to yes and no. A repeated question ("yes or no") is not an answer, nor
    is "yes and no". The reference, in ``column``, is one of the four words or a bool.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 or 1.
    Source: rules designed for mmgrpo; the task follows POPE (Li et al. 2023, arXiv:2305.10355).
    Traps: a "no" within a sentence ("there is no doubt") counts as no unless there is also a yes, and "not true" counts
    as yes: ask for one word, or use tags. An answer of more than 10,000 characters scores 0.
    """

    def __init__(self, column: str = "answer", extract: Extract = "none") -> None:
        self.column = column
        self._extract: Extract = require_extract("YesNo.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("yes_no", samples, self.column, self._reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(value, self._reference, "yes, no, true, false or a bool")

    def _reference(self, value: Any) -> list[bool] | None:
        truth = value if isinstance(value, bool) else _truth(value) if isinstance(value, str) else None
        return None if truth is None else [truth]

    def _score(self, text: str, reference: list[bool]) -> Score:
        answer = _truth(extract_answer(text, self._extract) or "")
        parsed = None if answer is None else _yes_or_no(answer)
        return Score(float(answer == reference[0]), comparison(parsed, _yes_or_no(reference[0])))


@final
class Classification:
    """Reward: 1 if the answer names the reference's class and no other, else 0.

    Complete words are compared, without case, punctuation and underscores; signs of numbers ("-1"), marks as in "C++"
    and "C#", and emoji count. With ``labels``, the list of classes, the answer may be a sentence: it must name exactly
    one class, where longer classes match first ("polar bear" is not "bear"). Without ``labels`` the answer must be the
    class itself, optionally after an article. The reference, in ``column``, is a class or a list of accepted names.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 or 1.
    Source: accuracy of the class name, as in Visual-RFT (Liu et al. 2025, arXiv:2503.01785); the matching rules are
    designed for mmgrpo.
    Traps: substrings ("male" in "female"), plurals and synonyms do not match: list them as accepted names. A negation
    ("not a cat") still names the class. An answer of more than 10,000 characters scores 0.
    """

    def __init__(self, column: str = "answer", extract: Extract = "none", labels: Sequence[str] | None = None) -> None:
        if labels is not None and (isinstance(labels, str) or not labels):
            raise ConfigError(f"Classification.labels must be a list of classes, got {labels!r}")
        self.column = column
        self._extract: Extract = require_extract("Classification.extract", extract)
        self._labels = None if labels is None else _distinct("Classification.labels", labels)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("classification", samples, self.column, _names, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(value, _names, "a text, a number, or a list of them, each with a word")

    def _score(self, text: str, accepted: list[str]) -> Score:
        answer, expected = extract_answer(text, self._extract) or "", {_plain(name) for name in accepted}
        answer_words = label_key(answer).split() if self._labels is None else label_words(answer)
        if self._labels is None:
            named = {
                " ".join(
                    answer_words[1:]
                    if len(answer_words) > 1 and answer_words[0] in ("a", "an", "the")
                    else answer_words
                )
            } - {""}
        else:
            named = _named(answer_words, self._labels | expected)
        reason = "several classes" if not named <= expected and len(named) > 1 else None
        return Score(
            float(bool(named) and named <= expected),
            comparison(", ".join(sorted(named)) or None, sorted(expected), reason),
        )


@final
class LabelSet:
    """Reward: score for naming several labels, reduced for missing and extra labels.

    1 if the answer names exactly the labels of the reference, 0 if it names none although there are some; else
    ``right`` for each correct label minus ``wrong`` for each missing or extra one, clipped to [0, 1]. Labels are
    matched as in ``classification``: complete words, longer labels first. The reference, in ``column``, is a list of
    labels, possibly empty.

    Example: ``{name: label_set, labels: [hands, limbs, face]}``.
    Settings: ``labels``: all labels; ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: MagicMirror, arXiv:2509.10260, eq. 5.
    Traps: with the published weights two correct labels of three score the same as three plus an extra one, 0.9.
    """

    def __init__(
        self,
        labels: Sequence[str],
        column: str = "answer",
        right: float = 0.6,
        wrong: float = 0.3,
        extract: Extract = "none",
    ) -> None:
        if isinstance(labels, str) or not labels:
            raise ConfigError(f"LabelSet.labels must be a list of labels, got {labels!r}")
        if not (right >= 0 and wrong >= 0):
            raise ConfigError(f"LabelSet.right and LabelSet.wrong must be at least 0, got {right} and {wrong}")
        self._labels = _distinct("LabelSet.labels", labels)
        self.column = column
        self._right = right
        self._wrong = wrong
        self._extract: Extract = require_extract("LabelSet.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("label_set", samples, self.column, self._reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(value, self._reference, "a list of labels of LabelSet.labels")

    def _reference(self, value: Any) -> set[str] | None:
        reference = {_plain(shortest_notation(label)) for label in value} if isinstance(value, list | tuple) else None
        return reference if reference is not None and reference <= self._labels else None

    def _score(self, text: str, reference: set[str]) -> Score:
        named = _named(label_words(extract_answer(text, self._extract) or ""), self._labels)
        explanation = comparison(", ".join(sorted(named)) or None, ", ".join(sorted(reference)))
        if named == reference or not named:
            return Score(float(named == reference), explanation)
        value = self._right * len(named & reference) - self._wrong * len(named ^ reference)
        return Score(min(max(value, 0.0), 1.0), explanation)


@final
class EditDistance:
    """Reward: 1 - edit distance between answer and reference / length of the longer one.

    Levenshtein distance in ``unit: characters`` or ``words`` (1 minus a word error rate bounded by 1), after
    normalization as in ``exact_match``. The nearest of several references is used. Scores below ``floor`` become 0: a
    floor of 0.5 gives the ANLS of document question answering.

    Settings: ``extract`` and ``ignore_case`` as in ``exact_match``.
    Range: 0 to 1.
    Source: Levenshtein distance by rapidfuzz; ANLS: Biten et al. 2019, arXiv:1905.13648.
    Traps: differences in whitespace and compatibility characters are removed by normalization; a text of more than
    10,000 characters scores 0.
    """

    def __init__(
        self,
        column: str = "answer",
        extract: Extract = "none",
        unit: Unit = "characters",
        ignore_case: bool = True,
        floor: float = 0.0,
    ) -> None:
        if not 0 <= floor <= 1:
            raise ConfigError(f"EditDistance.floor must be in [0, 1], got {floor}")
        self.column = column
        self._extract: Extract = require_extract("EditDistance.extract", extract)
        self._unit: Unit = require_choice("EditDistance.unit", unit, Unit)
        self._ignore_case = ignore_case
        self._floor = floor
        self._levenshtein = required("rapidfuzz.distance", "reward edit_distance").Levenshtein

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("edit_distance", samples, self.column, self._references, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(
            value, self._references, "a text or number of at most 10,000 characters, or a list of them"
        )

    def _references(self, value: Any) -> list[str] | None:
        accepted = accepted_texts(value)
        return None if accepted is None or any(len(text) > MAX_ANSWER_CHARS for text in accepted) else accepted

    def _score(self, text: str, accepted: list[str]) -> Score:
        answer = extract_answer(text, self._extract)
        plain = None if answer is None else normalize_text(answer, ignore_case=self._ignore_case)
        if plain is None:
            return Score(0.0, comparison(answer, accepted, None if answer is None else "too long"))
        likeness = [self._similarity(plain, normalize_text(a, ignore_case=self._ignore_case) or "") for a in accepted]
        best = max(likeness)
        explanation = comparison(answer, accepted[likeness.index(best)])
        if best < self._floor:
            return Score(0.0, explanation | {"reason": f"{best:.2f} alike, below {self._floor:g}"})
        return Score(best, explanation)

    def _similarity(self, answer: str, reference: str) -> float:
        by_words = self._unit == "words"
        pair = (answer.split(), reference.split()) if by_words else (answer, reference)
        return self._levenshtein.normalized_similarity(*pair)


def _yes_or_no(truth: bool) -> str:
    return "yes" if truth else "no"


def _truth(text: str) -> bool | None:
    answer_words = words(text)
    truths = [_TRUTH.get(word) for word in answer_words]
    distinct_truths = {truth for truth in truths if truth is not None}
    if len(distinct_truths) == 1:
        return distinct_truths.pop()
    joined = len(answer_words) > 2 and answer_words[1] == "and" and truths[2] is not None
    echo = joined or (len(answer_words) > 1 and (truths[1] is not None or answer_words[1] == "or"))
    return None if not answer_words or echo else truths[0]


def _named(answer_words: list[str], labels: set[str]) -> set[str]:
    """The labels in a list of words: the longest match at each position, without overlaps."""
    longest, at, matched = max(len(label.split()) for label in labels), 0, set()
    while at < len(answer_words):
        lengths = range(min(longest, len(answer_words) - at), 0, -1)
        size = next((n for n in lengths if " ".join(answer_words[at : at + n]) in labels), 0)
        if size:
            matched.add(" ".join(answer_words[at : at + size]))
        at += size or 1
    return matched


def _names(value: Any) -> list[str] | None:
    """The accepted names; None if one of them has no word."""
    accepted = accepted_texts(value)
    return None if accepted is None or not all(map(_plain, accepted)) else accepted


def _plain(label: str) -> str:
    return label_key(label)


def _distinct(where: str, labels: Sequence[object]) -> set[str]:
    """The labels as comparison keys. Raises ConfigError for labels that differ only in characters that are not
    compared.
    """
    written: dict[str, tuple[str, str]] = {}
    for label in map(str, labels):
        bare = re.sub(r"[\s_.,;:'\"()/-]+", "", normalize_text(label) or "")
        other, earlier = written.setdefault(_plain(label), (label, bare))
        if bare != earlier or not _plain(label):
            raise ConfigError(
                f"{where}: {other!r} and {label!r} are equal or empty without punctuation, so answers cannot "
                "distinguish them; rename one of them in the labels and in the data"
            )
    return set(written)
