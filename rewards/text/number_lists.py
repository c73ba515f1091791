"""Reward for answers with several numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, finite, require_choice, require_extract
from ..parsing.numerals import stated_numbers
from ..parsing.reference_values import find_reference_error, score_against_reference

Mode = Literal["each", "contains"]

MAX_NUMBERS = 100

_FRACTION = re.compile(r"\\[dt]?frac\s?\{([^{}]{1,40})\}\s?\{([^{}]{1,40})\}")
_DIGITS = r"\d{1,30}(?:\.\d{1,30})?"


@final
class NumberList:
    r"""Reward: accuracy of a list of numbers.

    ``each`` is the mean over positions of 1 - |stated - reference| / |reference|, at least 0 each; a different number
    of values scores 0. ``contains`` is 1 if each number of the reference matches a different stated number within
    ``absolute``, in any order; else 0. With ``symbol``, such as P, only its coefficients count, and zeros: ``0.5P``,
    ``3P/2``, ``\frac{3}{2} P``, ``P`` for 1. The reference, in ``column``, is a list of numbers or of texts with one
    number each, or a text with all numbers.

    Example: ``{name: number_list, extract: boxed, mode: contains, absolute: 1.0e-4}``.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: each: VideoSSR's counting, arXiv:2511.06281; contains: BeamPERL's coefficients, arXiv:2603.04124.
    Deviation: ``-P`` is -1.
    Traps: with ``contains`` additional numbers cost nothing, so extract the answer from a tag or a box; an answer of
    more than 100 numbers scores 0. A reference of 0 is matched only by 0.
    """

    def __init__(
        self,
        column: str = "answer",
        mode: Mode = "each",
        absolute: float = 0.0,
        symbol: str | None = None,
        extract: Extract = "none",
    ) -> None:
        if not absolute >= 0:
            raise ConfigError(f"NumberList.absolute must be at least 0, got {absolute}")
        if symbol is not None and not symbol.isidentifier():
            raise ConfigError(f"NumberList.symbol must be a name such as P, got {symbol!r}")
        self.column = column
        self._mode: Mode = require_choice("NumberList.mode", mode, Mode)
        self._absolute = absolute
        self._symbol = symbol
        self._extract: Extract = require_extract("NumberList.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("number_list", samples, self.column, self._reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._reference, "a list of numbers, or a text with numbers")

    def _reference(self, value: Any) -> list[float] | None:
        parts = value if isinstance(value, list | tuple) else [value]
        numbers = [
            number for part in parts for number in ([part] if finite(part) is not None else self._read(str(part)))
        ]
        return [float(number) for number in numbers] if 0 < len(numbers) <= MAX_NUMBERS else None

    def _score(self, text: str, reference: list[float]) -> Score:
        stated = self._read(extract_answer(text, self._extract) or "")
        explanation = comparison(_listed(stated), _listed(reference) or "")
        if len(stated) > MAX_NUMBERS:
            return Score(0.0, explanation | {"reason": f"{len(stated)} numbers, more than {MAX_NUMBERS}"})
        if self._mode == "contains":
            return Score(float(_contains(stated, reference, self._absolute)), explanation)
        if len(stated) != len(reference):
            return Score(0.0, explanation | {"reason": f"{len(stated)} numbers, not {len(reference)}"})
        return Score(sum(map(_nearness, stated, reference)) / len(reference), explanation)

    def _read(self, text: str) -> list[float]:
        if self._symbol is None:
            return stated_numbers(text, spoken=False)
        plain = _FRACTION.sub(r"\1/\2", text)
        return list(coefficients(plain, self._symbol))


def coefficients(text: str, symbol: str) -> Iterator[float]:
    """The coefficients of a symbol in a text, and the zeros, in order; a bare symbol has coefficient 1."""
    term = rf"(?P<sign>-)?(?P<above>{_DIGITS})?(?:/(?P<part>{_DIGITS}))?\s?(?:\\cdot\s?|\*\s?)?"
    pattern = re.compile(rf"(?<![\w.]){term}(?<![A-Za-z_]){symbol}(?!\w)(?:\s?/\s?(?P<below>{_DIGITS}))?|"
                       r"(?<![\w.])(?P<zero>0(?:\.0{1,30})?)(?![\w./])")  # fmt: skip
    for match in pattern.finditer(text):
        divisors = [float(match[name] or 1) for name in ("part", "below")]
        if match["zero"]:
            yield 0.0
        elif all(divisors):
            yield (-1.0 if match["sign"] else 1.0) * float(match["above"] or 1) / (divisors[0] * divisors[1])


def _contains(stated: Sequence[float], reference: Sequence[float], absolute: float) -> bool:
    left = list(stated)
    for expected in reference:
        near = next((number for number in left if abs(number - expected) <= absolute), None)
        if near is None:
            return False
        left.remove(near)
    return True


def _nearness(stated: float, right: float) -> float:
    return float(stated == right) if right == 0 else max(0.0, 1 - abs(stated - right) / abs(right))


def _listed(numbers: Sequence[float]) -> str | None:
    return ", ".join(f"{number:g}" for number in numbers[:MAX_NUMBERS]) or None
