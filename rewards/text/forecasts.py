"""Reward for stated probabilities, of an event or of being right oneself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison, rounded
from ..parsing.extraction import Extract, extract_answer, finite, require_extract
from ..parsing.numerals import numbers
from ..parsing.reference_values import find_reference_error, read_references
from .answer_verifiers import Judge, judge_of


@final
class Brier:
    """Reward: 1 - squared error of the probability in the answer (1 - Brier score).

    1 - (p - y)^2. y is the outcome in ``column``: true or false, 0 or 1, or a probability. With ``of`` y is whether the
    answer is correct, a score of that reward of at least ``right_from``, so p is a confidence. p is the last number of
    the extracted text, divided by ``scale`` (1; 100 for percent) and clipped to [0, 1]; an answer without a number
    scores ``missing``.

    Example: ``{name: brier, extract: {tag: probability}}``.
    Judges: math_verify, exact_match, multiple_choice, yes_no, classification, number, count.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1, and ``missing``.
    Source: Brier 1950, Verification of forecasts expressed in terms of probability; as a confidence reward: ReFIne,
    arXiv:2510.09062, train/grpo_ReFIne.py.
    Traps: 50% is 50: set ``scale: 100``; 7/10 is 0.7. If half of the answers are correct, a policy that always states
    0.5 gets 0.75.
    """

    in_place_of_columns: ClassVar[Mapping[str, object]] = {"of": None}

    def __init__(
        self,
        column: str = "answer",
        of: str | Mapping[str, Any] | Judge | None = None,
        right_from: float = 1.0,
        scale: float = 1.0,
        missing: float = 0.0,
        extract: Extract = "none",
    ) -> None:
        if not scale > 0 or not math.isfinite(missing):
            raise ConfigError(f"Brier needs scale > 0 and a finite missing, got {scale} and {missing}")
        self.column = column
        self.of = None if of is None else judge_of("Brier.of", of)
        self._right_from = right_from
        self._scale = scale
        self._missing = missing
        self._extract: Extract = require_extract("Brier.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        outcomes = self._outcomes(samples)
        return [None if y is None else self._score(s.text or "", y) for s, y in zip(samples, outcomes, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _outcome, "a bool or a number from 0 to 1")

    def _outcomes(self, samples: Sequence[Sample]) -> list[float | None]:
        """The outcomes; NaN if the verifier failed, None without an outcome."""
        if self.of is None:
            return read_references("brier", samples, self.column, _outcome)
        verifier_scores = [None if score is None else float(score) for score in self.of(samples)]
        return [v if v is None or math.isnan(v) else float(v >= self._right_from) for v in verifier_scores]

    def _score(self, text: str, outcome: float) -> float | Score:
        if math.isnan(outcome):
            return outcome
        stated = numbers(extract_answer(text, self._extract) or "", spoken=False)
        if not stated:
            return Score(self._missing, comparison(None, outcome, "no probability"))
        probability = min(max(stated[-1] / self._scale, 0.0), 1.0)
        value = 1 - (probability - outcome) ** 2
        return Score(value, comparison(probability, outcome) | {"parts": rounded({"error": probability - outcome})})


def _outcome(value: Any) -> float | None:
    outcome = float(value) if isinstance(value, bool) else finite(value)
    return outcome if outcome is not None and 0 <= outcome <= 1 else None
