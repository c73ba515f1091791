"""Rewards for numeric answers: equality within a tolerance, relative accuracy, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, finite, require_choice, require_extract
from ..parsing.numerals import has_terms, stated_numbers
from ..parsing.reference_values import find_reference_error, score_against_reference

Which = Literal["first", "last", "only"]
CountMode = Literal["exact", "relative"]

_SINGLE_NUMBER = "a number, or a text that states exactly one and no other term"


@final
class Number:
    r"""Reward: 1 if the number in the answer equals the reference within a tolerance, else 0.

    Correct if |answer - reference| <= max(absolute, relative * |reference|); with both at 0 the numbers must be equal.
    ``relative: 0.05`` is the relaxed accuracy of chart questions. ``which`` selects among several numbers: ``first``,
    ``last``, or ``only`` (several different numbers score 0). Parsed are digits (sign, thousands separators, decimals,
    exponents as 1e3 or 1.2 x 10^3, fractions 3/4, in LaTeX also mixed numbers) and, unless ``spoken`` is false, English
    cardinals ("twenty-one"). Numbers within a term (``\sqrt{18}``, ``5\pi``, ``10^3``, ``2x``, ``4+5i``, ``101_2``) are
    ignored. The reference, in ``column``, is a number or a text with exactly one number and no such term; other
    references are not scored (None).

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 or 1.
    Source: relaxed accuracy: Masry et al. 2022 (ChartQA), arXiv:2203.10244.
    Traps: a reference of 0 has no relative tolerance, only ``absolute``; units and percent signs are ignored (50% is
    50, not 0.5, and 2M is 2); "1,234" is 1234, even if it means a list; "1 234", "1,5" and "3 1/2" are two numbers
    each; "18!" is 18. For terms, units and numbers equal by value use ``math_verify``.
    """

    def __init__(
        self,
        column: str = "answer",
        extract: Extract = "none",
        which: Which = "last",
        absolute: float = 0.0,
        relative: float = 0.0,
        spoken: bool = True,
    ) -> None:
        if not (absolute >= 0 and relative >= 0):
            raise ConfigError(f"Number.absolute and Number.relative must be at least 0, got {absolute} and {relative}")
        self.column = column
        self._answer = _Stated("Number", extract, which, spoken)
        self._absolute = absolute
        self._relative = relative

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("number", samples, self.column, reference_number, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, reference_number, _SINGLE_NUMBER)

    def _score(self, text: str, reference: float) -> Score:
        answer, reason = self._answer.number(text)
        allowed = max(self._absolute, self._relative * abs(reference))
        right = answer is not None and abs(answer - reference) <= allowed
        return Score(float(right), comparison(answer, reference, reason))


@final
class MeanRelativeAccuracy:
    """Reward: mean relative accuracy (MRA), the fraction of ten tolerances that the number satisfies.

    (1/10) sum over c in 0.5, 0.55, .., 0.95 of [|answer - reference| / |reference| < 1 - c]: 1 within 5 %, 0.5 at an
    error of just under 30 %, 0 from 50 % on. Answer and reference are parsed as in ``number``.

    Range: 0 to 1, in steps of 0.1.
    Source: Yang et al. 2024 (VSI-Bench), arXiv:2412.14171.
    Traps: the inequality is strict, so an error of exactly 5 % gives 0.9. For a reference of 0 the relative error is
    undefined: an answer of 0 scores 1, others 0.
    """

    def __init__(
        self, column: str = "answer", extract: Extract = "none", which: Which = "last", spoken: bool = True
    ) -> None:
        self.column = column
        self._answer = _Stated("MeanRelativeAccuracy", extract, which, spoken)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("mean_relative_accuracy", samples, self.column, reference_number, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, reference_number, _SINGLE_NUMBER)

    def _score(self, text: str, reference: float) -> Score:
        answer, reason = self._answer.number(text)
        explanation = comparison(answer, reference, reason)
        if answer is None or reference == 0:
            return Score(float(answer is not None and answer == 0), explanation)
        error = abs(answer - reference)
        return Score(sum(20 * error < step * abs(reference) for step in range(1, 11)) / 10, explanation)


@final
class CountMatch:
    """Reward: whether the count in the answer is correct; with ``mode: relative``, how close it is.

    ``exact`` is 1 for the reference's count, else 0; ``relative`` is max(0, 1 - |answer - reference| / max(reference,
    1)). The number is parsed as in ``number``; ``which`` is the last one by default. The reference, in ``column``, is
    an integer of at least 0, or a text with one.

    Range: 0 or 1; ``relative`` 0 to 1.
    Source: as in R1-V, NeMo-RL and ms-swift. Deviation: max(reference, 1), so that images without objects are scored.
    Traps: the last number of a sentence may not be the count ("4 cubes in 2 rows"): use tags and ``which: only``.
    """

    def __init__(
        self,
        column: str = "answer",
        extract: Extract = "none",
        which: Which = "last",
        mode: CountMode = "exact",
        spoken: bool = True,
    ) -> None:
        self.column = column
        self._answer = _Stated("Count", extract, which, spoken)
        self._mode: CountMode = require_choice("Count.mode", mode, CountMode)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("count", samples, self.column, self._reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._reference, "an integer of at least 0")

    def _reference(self, value: Any) -> float | None:
        number = reference_number(value)
        return None if number is None or number < 0 or number != int(number) else number

    def _score(self, text: str, reference: float) -> Score:
        answer, reason = self._answer.number(text)
        explanation = comparison(answer, reference, reason)
        if answer is None or self._mode == "exact":
            return Score(float(answer == reference), explanation)
        return Score(max(0.0, 1 - abs(answer - reference) / max(reference, 1.0)), explanation)


@final
class FirstError:
    """Reward: for step verifiers, whether the answer detects a mistake, and how close it is to the first wrong step.

    The answer is the index of the first wrong step, counted from 0, or -1 for none. The score is -1 for a false alarm,
    a missed mistake, or an answer without an integer; else ``decay`` to the power of the number of steps between answer
    and reference. The reference, in ``column``, is such an index.

    Settings: ``extract`` and ``which`` as in ``number``.
    Range: -1, or above 0 to 1.
    Source: Wu et al. 2025 (OPV), arXiv:2512.10756, sec. 2.3, which gives no value for ``decay``, lambda in (0, 1).
    Traps: it trains a verifier; to reward a solver with the trained verifier, use ``text_judge``.
    """

    def __init__(
        self, column: str = "answer", extract: Extract = "none", which: Which = "last", decay: float = 0.5
    ) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"FirstError.decay must be between 0 and 1, got {decay}")
        self.column = column
        self._answer = _Stated("FirstError", extract, which, spoken=False)
        self._decay = decay

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("first_error", samples, self.column, _step, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _step, "an integer of at least -1")

    def _score(self, text: str, reference: float) -> Score:
        answer, reason = self._answer.number(text)
        explanation = comparison(answer, reference, reason)
        stated_step = _step(answer)
        if stated_step is None or (stated_step < 0) != (reference < 0):
            return Score(-1.0, explanation)
        return Score(self._decay ** abs(stated_step - reference), explanation)


def _step(value: Any) -> float | None:
    """The index of a step, or -1."""
    number = None if value is None else reference_number(value)
    return None if number is None or number < -1 or number != int(number) else number


def reference_number(value: Any) -> float | None:
    """The reference as a number: a finite number, or a text with exactly one."""
    if not isinstance(value, str):
        return finite(value)
    stated = stated_numbers(value)
    return stated[0] if len(stated) == 1 and not has_terms(value) else None


@final
class _Stated:
    """Selects the number of a text that is its answer."""

    def __init__(self, owner: str, extract: Extract, which: Which, spoken: bool) -> None:
        self._extract: Extract = require_extract(f"{owner}.extract", extract)
        self._which: Which = require_choice(f"{owner}.which", which, Which)
        self._spoken = spoken

    def number(self, text: str) -> tuple[float | None, str | None]:
        """The number, or None; with a reason if ``which: only`` and the text has several different numbers."""
        stated = stated_numbers(extract_answer(text, self._extract) or "", spoken=self._spoken)
        if self._which == "only" and len(set(stated)) > 1:
            return None, f"{len(set(stated))} different numbers"
        return (None if not stated else stated[0] if self._which == "first" else stated[-1]), None
