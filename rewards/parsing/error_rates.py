"""How far a transcript is from what was said, in words or characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmgrpo.system.extras import required

from .extraction import words
from .reference_values import accepted_texts

Unit = Literal["words", "characters"]


def transcripts(value: Any) -> list[str] | None:
    """The accepted transcripts of a reference; None if one of them has no word in it, or is too long."""
    accepted = accepted_texts(value)
    return None if accepted is None or not all(words(text) for text in accepted) else accepted


@dataclass(frozen=True, slots=True)
class Errors:
    """How many errors a unit of the reference has, and which reference it is."""

    rate: float
    reference: str

    @property
    def score(self) -> float:
        """1 less the rate, at least 0."""
        return max(0.0, 1 - self.rate)


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """Errors over the length of the reference.

    Both texts are in lower case, without punctuation, their words one blank apart (Unicode NFKC); numbers stay as they
    are written; a text of more than 10,000 characters says nothing. errors = substitutions + deletions + insertions,
    the least there can be.

    Attributes:
        unit: what is counted; the blanks between words are characters.
        wanted_by: the reward, for the message about a missing package.
    """

    unit: Unit
    wanted_by: str

    def __call__(self, transcript: str, reference: str) -> float:
        """0 for the same, 1 for nothing said; above 1 where more is said than was asked.

        Raises: MissingPackageError without rapidfuzz.
        Source: the word error rate of speech recognition, as jiwer computes it.
        """
        levenshtein = required("rapidfuzz.distance", self.wanted_by).Levenshtein
        pair: list[Sequence[str]] = [words(text) for text in (transcript, reference)]
        if self.unit == "characters":
            pair = [" ".join(text_words) for text_words in pair]
        return levenshtein.distance(*pair) / len(pair[1])

    def nearest(self, transcript: str, accepted: Sequence[str]) -> Errors:
        """The least rate, over several references."""
        rates = [self(transcript, reference) for reference in accepted]
        return Errors(min(rates), accepted[rates.index(min(rates))])
