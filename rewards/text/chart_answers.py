"""Reward for chart questions: numbers within a tolerance, other answers by exact match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, normalize_text, require_choice, require_extract
from ..parsing.reference_values import accepted_texts, find_reference_error, score_against_reference

Percent = Literal["divide", "either"]

_NUMBER = re.compile(
    r"(?P<sign>[-+]?)[$\u20ac\u00a3\u00a5]?\s?"
    r"(?P<digits>\d{1,3}(?:(?P<part>[,' \u2019])\d{3})(?:(?P=part)\d{3}){0,6}|\d{1,40})?"
    r"(?P<decimals>\.\d{0,40})?(?:e(?P<power>[-+]?\d{1,3}))?\s?(?P<percent>%|percent)?"
)


@final
class ChartAnswer:
    """Reward: relaxed accuracy, 1 if the answer is within 5 % of the reference number or equals its text, else 0.

    Correct if |answer - reference| <= ``relative`` * |reference|, if both are numbers as complete texts: a sign, a
    currency, digits with thousands separators (``1,234``, ``1 234``, ``1'234``), decimals, an exponent, a percent sign.
    Otherwise the texts must be equal, ignoring case, whitespace, surrounding quotes and a final period. The reference,
    in ``column``, is a number or text, or a list of accepted ones.

    A percent sign divides by 100; with ``percent: either`` 45% matches 45 as well as 0.45. With ``exact_years``
    integers from 1000 to 2100 must be equal.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 or 1.
    Source: Masry et al. 2022 (ChartQA), arXiv:2203.10244, sec. 5.1; pix2struct, metrics.py, relaxed_correctness.
    Deviation: separators and currencies are parsed; a reference of 0 requires 0, in any notation.
    Traps: 5 % of a year are a hundred years: 1950 matches 2010 unless ``exact_years`` is set. ChartQA's references
    often lack the percent sign that a model writes: use ``percent: either``. The answer must be the number alone,
    without a sentence: extract it from tags, or use ``number``.
    """

    def __init__(
        self,
        column: str = "answer",
        relative: float = 0.05,
        percent: Percent = "divide",
        exact_years: bool = False,
        extract: Extract = "none",
    ) -> None:
        if not 0 <= relative < 1:
            raise ConfigError(f"ChartAnswer.relative must be in [0, 1), got {relative}")
        self.column = column
        self._relative = relative
        self._percent: Percent = require_choice("ChartAnswer.percent", percent, Percent)
        self._exact_years = exact_years
        self._extract: Extract = require_extract("ChartAnswer.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("chart_answer", samples, self.column, accepted_texts, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, accepted_texts, "a text, a number, or a list of them")

    def _score(self, text: str, accepted: list[str]) -> Score:
        answer = _plain(extract_answer(text, self._extract) or "")
        right = answer is not None and any(self._right(answer, _plain(reference)) for reference in accepted)
        return Score(float(right), comparison(answer or None, accepted))

    def _right(self, answer: str, expected: str | None) -> bool:
        if expected is None or not answer:
            return False
        stated, reference = _amount(answer), _amount(expected)
        if stated is None or reference is None or (self._exact_years and stated.year and reference.year):
            return answer == expected
        return any(
            abs(value - reference_value) <= self._relative * abs(reference_value) + 1e-12 * abs(reference_value)
            for value in self._readings(stated)
            for reference_value in self._readings(reference)
        )

    def _readings(self, amount: _Amount) -> list[float]:
        """The numbers that the amount may mean."""
        if not amount.percent:
            return [amount.value]
        return [amount.value / 100] if self._percent == "divide" else [amount.value / 100, amount.value]


@dataclass(frozen=True, slots=True)
class _Amount:
    """A parsed number."""

    value: float
    percent: bool
    year: bool


def _plain(text: str) -> str | None:
    """Normalized text without surrounding quotes and final period; None if it is too long."""
    plain = normalize_text(text)
    if plain is None:
        return None
    plain = plain.removesuffix(".").strip()
    quoted = len(plain) >= 2 and plain[0] == plain[-1] and plain[0] in "\"'"
    return plain[1:-1].strip() if quoted else plain


def _amount(plain: str) -> _Amount | None:
    match = _NUMBER.fullmatch(plain.replace("\u2212", "-")) if len(plain) <= 120 else None
    if match is None or not (match["digits"] or (match["decimals"] or "").strip(".")):
        return None
    digits = re.sub(r"\D", "", match["digits"] or "") or "0"
    value = float(f"{match['sign']}{digits}{match['decimals'] or ''}e{match['power'] or 0}")
    bare = plain.isdecimal() and 1000 <= value <= 2100
    return None if value in (float("inf"), float("-inf")) else _Amount(value, match["percent"] is not None, bare)
