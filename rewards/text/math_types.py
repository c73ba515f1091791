"""What a mathematical text means, as the process of ``math_worker`` compares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..parsing.units import Unit

Kind = Literal["number", "list", "set", "tuple", "region", "relation", "matrix", "ratio", "base", "words"]


@dataclass(frozen=True, slots=True, eq=False)
class MathValue:
    """One reading of a text.

    Attributes:
        kind: what it is.
        expression: of a number its value, of a region its set, of a matrix the cells' values.
        items: of a list, set, tuple, ratio, matrix (its rows, flattened) or relation (its sides).
        operators: between the sides of a relation; of a tuple its two brackets.
        unit: of a number.
        percent: whether a percent sign follows the number, which is then divided by 100.
        places: decimals that are written; None for a number without a decimal point.
        words: of words and of numerals in a base.
        base: of numerals.
        shape: of a matrix.
    """

    kind: Kind
    expression: Any = None
    items: tuple[MathValue, ...] = ()
    operators: tuple[str, ...] = ()
    unit: Unit | None = None
    percent: bool = False
    places: int | None = None
    words: str = ""
    base: int = 10
    shape: tuple[int, int] = (0, 0)


class UnreadError(ValueError):
    """The text cannot be read as a whole."""
