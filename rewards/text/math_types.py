"""Values of mathematical texts, as the process of ``math_worker`` compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..parsing.units import Unit

Kind = Literal["number", "list", "set", "tuple", "region", "relation", "matrix", "ratio", "base", "words"]


@dataclass(frozen=True, slots=True, eq=False)
class MathValue:
    """One interpretation of a mathematical text.

    Attributes:
        kind: type of the value.
        expression: value of a number, set of a region.
        items: items of a list, set, tuple, ratio, matrix (flattened rows) or relation (sides).
        operators: operators between the sides of a relation; the two brackets of a tuple.
        unit: unit of a number.
        percent: whether a percent sign follows the number, which is then divided by 100.
        places: number of decimals; None for a number without a decimal point.
        words: text of words and of numerals in a base.
        base: base of numerals.
        shape: shape of a matrix.
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
    """The text cannot be parsed completely."""
