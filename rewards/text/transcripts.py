"""Reward for transcripts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..parsing.error_rates import ErrorRate, Unit, transcripts
from ..parsing.explanations import transcript_comparison
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract
from ..parsing.reference_values import find_reference_error, score_against_reference


@final
class WordErrorRate:
    """Reward: 1 - word error rate of the answer, a transcript, at least 0.

    The rate is substitutions, deletions and insertions over the words of the reference in ``column``, or over its
    characters with ``unit: characters``. Both texts are compared in lower case, without punctuation and in Unicode
    NFKC; the nearest of several references is used.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: the word error rate of speech recognition, computed as jiwer does, by rapidfuzz; as a reward for speech
    recognition by language models, Shivakumar et al. 2025, arXiv:2509.01939.
    Traps: numbers and abbreviations are not converted: "10" is not "ten"; normalize the references like the expected
    answers. With many insertions the rate exceeds 1 and the score stays 0. Texts in languages without spaces are single
    words: use ``characters``.
    """

    deterministic = True

    def __init__(self, column: str = "text", unit: Unit = "words", extract: Extract = "none") -> None:
        self.column = column
        self._rate = ErrorRate(require_choice("WordErrorRate.unit", unit, Unit), "reward word_error_rate")
        self._extract: Extract = require_extract("WordErrorRate.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("word_error_rate", samples, self.column, transcripts, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, transcripts, "a text, a number, or a list of them, each with a word")

    def _score(self, text: str, accepted: list[str]) -> Score:
        transcript = extract_answer(text, self._extract) or ""
        nearest = self._rate.nearest(transcript, accepted)
        return Score(nearest.score, transcript_comparison(transcript, nearest.reference, nearest.rate))
