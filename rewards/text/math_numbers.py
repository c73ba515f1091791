"""Equality of numbers, quantities and terms, exactly or as decimals.

It runs in the process of ``math_worker``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sympy
from math_verify.grader import sympy_expr_eq

from ..parsing.units import Unit, is_generic
from .math_types import MathValue

RELATIVE: Any = sympy.Rational(1, 10**6)
"""Relative tolerance between a decimal and another notation of a number."""

_NOISE: Any = sympy.Rational(1, 10**9)
DIGITS = 40
POINTS = (
    tuple(sympy.Rational(*pair) for pair in ((13, 11), (17, 7), (19, 5), (23, 17), (29, 3), (31, 13))),
    tuple(sympy.Rational(*pair) for pair in ((7, 19), (11, 23), (5, 29), (3, 31), (2, 37), (13, 41))),
    tuple(sympy.Rational(*pair) for pair in ((41, 9), (43, 21), (47, 8), (53, 49), (59, 6), (61, 25))),
    tuple(sympy.Rational(*pair) for pair in ((-13, 11), (-17, 7), (-3, 5), (-23, 17), (-29, 3), (-31, 13))),
)


def same_numbers(gold: MathValue, answer: MathValue) -> bool:
    """Whether two numbers are equal, with percent signs and units converted; single letters by their lower case."""
    letters = [getattr(value.expression, "name", "") for value in (gold, answer)]
    if all(len(letter) == 1 for letter in letters):
        return letters[0].lower() == letters[1].lower()
    if gold.percent != answer.percent:
        plain, percent = (answer, gold) if gold.percent else (gold, answer)
        bare = replace(percent, expression=percent.expression * 100, percent=False)
        return same_numbers(plain, bare) or _close(plain, percent)
    units = [unit for unit in (gold.unit, answer.unit) if unit is not None and not is_generic(unit)]
    if len(units) == 2 and all(unit.measures for unit in units):
        return _same_quantities(gold, answer, units[0], units[1])
    if len(units) == 1 and units[0].measures:
        return _close(gold, answer) or _as_symbols(gold, answer) or _same_angle(gold, answer)
    return _close(gold, answer)


def _same_quantities(gold: MathValue, answer: MathValue, first: Unit, second: Unit) -> bool:
    if first.dimension != second.dimension:
        return False
    if first.factor == second.factor:
        return _close(gold, answer)
    factor = sympy.nsimplify(second.factor / first.factor, rational=True, tolerance=1e-12)
    if "angle" in first.dimension:
        factor = 180 / sympy.pi if first.factor < second.factor else sympy.pi / 180
    return _close(gold, replace(answer, expression=answer.expression * factor))


def _same_angle(gold: MathValue, answer: MathValue) -> bool:
    """Degrees and radians without a unit, which have a \\pi."""
    first, second = (gold, answer) if gold.unit is not None else (answer, gold)
    is_degrees = first.unit is not None and first.unit.dimension == {"angle": 1} and first.unit.factor < 1
    if not is_degrees or not second.expression.has(sympy.pi):
        return False
    return _close(replace(first, expression=first.expression * sympy.pi / 180, unit=None), second)


def _as_symbols(gold: MathValue, answer: MathValue) -> bool:
    """ "5m" and "5 m": a unit that the other side reads as symbols."""
    measured, other = (gold, answer) if gold.unit is not None else (answer, gold)
    name = measured.unit.text if measured.unit is not None else ""
    spelled = sympy.prod(sympy.Symbol(letter, real=True) for letter in name)
    return (
        name.isalpha()
        and bool(other.expression.free_symbols)
        and equal(measured.expression * spelled, other.expression)
    )


def _close(gold: MathValue, answer: MathValue) -> bool:
    first, second = gold.expression, answer.expression
    if gold.places is None and answer.places is None:
        return equal(first, second)
    constants = not (first.free_symbols or second.free_symbols)
    if not constants:
        return equal(first, second)
    a, b = sympy.N(first.doit(), DIGITS), sympy.N(second.doit(), DIGITS)
    if not (a.is_number and b.is_number) or a.has(sympy.zoo, sympy.nan) or b.has(sympy.zoo, sympy.nan):
        return False
    error = abs(a - b)
    if error > RELATIVE * (1 + _NOISE) * abs(a):
        return bool(a == b)
    if not (first.is_Rational and second.is_Rational and _is_decimal(gold) and _is_decimal(answer)):
        return True
    places = min(gold.places or 0, answer.places or 0)
    return bool(error <= _NOISE * abs(a) or (places > 0 and error < sympy.Rational(1, 2) / 10**places))


def _is_decimal(value: MathValue) -> bool:
    """Whether it was written as a decimal or an integer, not as a non-terminating fraction."""
    return value.places is not None or bool(value.expression.is_Integer)


def equal(first: Any, second: Any) -> bool:
    """Whether two exact expressions are equal: by evaluation at several points, else by math-verify."""
    if first == second:
        return True
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    first, second = first.doit(), second.doit()
    if first == second:
        return True
    if (first.is_Rational and second.is_Rational) or len(symbols) > len(POINTS[0]):
        return len(symbols) > len(POINTS[0]) and sympy_expr_eq(first, second, 12, 30)
    agreements = [_agree(first, second, dict(zip(symbols, point, strict=False))) for point in POINTS]
    if False in agreements:
        return False
    if any(agreements) and (not symbols or agreements.count(True) >= 2):
        return True
    return bool(sympy_expr_eq(first, second, 12, 30))


def _agree(first: Any, second: Any, point: dict[Any, Any]) -> bool | None:
    """Whether both have the same value at a point; None if one is undefined."""
    try:
        a, b = (sympy.N(expression.subs(point), DIGITS) for expression in (first, second))
    except (ArithmeticError, TypeError, ValueError, AttributeError):
        return None
    if not (a.is_number and b.is_number) or a.has(sympy.nan, sympy.zoo) or b.has(sympy.nan, sympy.zoo):
        return None
    if a.is_infinite or b.is_infinite:
        return bool(a == b)
    if a.is_real != b.is_real and not (first.has(sympy.I) or second.has(sympy.I)):
        return None  # outside the domain of one side: \ln x^2 and 2 \ln x
    difference = abs(a - b)
    return bool(difference <= sympy.Float(f"1e-{DIGITS - 8}", DIGITS) * max(abs(a), abs(b), key=lambda n: float(n)))
