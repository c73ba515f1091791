"""Error rates of transcripts, in words or characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmgrpo.system.extras import required

from .extraction import words
from .reference_values import accepted_texts

Unit = Literal["words", "characters"]


def transcripts(value: Any) -> list[str] | None:
    """The accepted transcripts of a reference; None if one has no words or is too long."""
    accepted = accepted_texts(value)
    return None if accepted is None or not all(words(text) for text in accepted) else accepted


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors per unit of the reference, and the reference."""

    rate: float
    reference: str

    @property
    def score(self) -> float:
        """1 - rate, at least 0."""
        return max(0.0, 1 - self.rate)


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """Number of errors divided by the length of the reference.

    Both texts are normalized: lower case, no punctuation, words separated by one space (Unicode NFKC); numbers are not
    converted; a text of more than 10,000 characters counts as empty. errors = minimum of substitutions + deletions +
    insertions.

    Attributes:
        unit: unit of the count; spaces between words are characters.
        feature: name of the reward, for the error about a missing package.
    """

    unit: Unit
    feature: str

    def __call__(self, transcript: str, reference: str) -> float:
        """0 for equal texts, 1 for an empty transcript; above 1 for many insertions.

        Raises: MissingPackageError without rapidfuzz.
        Source: the word error rate of speech recognition, as jiwer computes it.
        """
        levenshtein = required("rapidfuzz.distance", self.feature).Levenshtein
        pair: list[Sequence[str]] = [words(text) for text in (transcript, reference)]
        if self.unit == "characters":
            pair = [" ".join(text_words) for text_words in pair]
        return levenshtein.distance(*pair) / len(pair[1])

    def nearest(self, transcript: str, accepted: Sequence[str]) -> Errors:
        """The lowest rate over several references."""
        rates = [self(transcript, reference) for reference in accepted]
        return Errors(min(rates), accepted[rates.index(min(rates))])
